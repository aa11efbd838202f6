// When series are added to their family, and by whom, with a family that counts.
#include "server/metrics/series_grid.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

using Labels = std::map<std::string, std::string>;

struct Count {
  std::atomic<int> value{0};
};

/// Gives the same labels the same series, as families of the metrics library do.
struct CountFamily {
  std::mutex mutex;
  std::map<Labels, std::unique_ptr<Count>> series;
  Count& Add(const Labels& labels) {
    const std::lock_guard lock(mutex);
    std::unique_ptr<Count>& one = series[labels];
    if (one == nullptr) one = std::make_unique<Count>();
    return *one;
  }
};

const std::vector<LabelAxis> kAxes = {{"color", {"red", "green", "other"}}, {"size", {"s", "l"}}};

TEST(SeriesGridTest, AllSeriesAreThereFromTheStart) {
  CountFamily family;
  SeriesGrid<Count> grid(family, kAxes);
  EXPECT_EQ(family.series.size(), 6u);
  ++grid("green", "l").value;
  EXPECT_EQ((family.series[{{"color", "green"}, {"size", "l"}}]->value), 1);
  EXPECT_EQ(family.series.size(), 6u);
}

TEST(SeriesGridTest, OrEachWithItsFirstEvent) {
  CountFamily family;
  SeriesGrid<Count> grid(family, SeriesStart::kFirstEvent, kAxes);
  EXPECT_TRUE(family.series.empty());
  ++grid("red", "s").value;
  ++grid("red", "s").value;
  ++grid("purple", "l").value;
  ASSERT_EQ(family.series.size(), 2u);
  EXPECT_EQ((family.series[{{"color", "red"}, {"size", "s"}}]->value), 2);
  EXPECT_EQ((family.series[{{"color", "other"}, {"size", "l"}}]->value), 1);
}

TEST(SeriesGridTest, FirstEventsOfManyThreadsCountInOneSeries) {
  CountFamily family;
  SeriesGrid<Count> grid(family, SeriesStart::kFirstEvent, kAxes);
  std::atomic<int> waiting{8};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      --waiting;
      while (waiting > 0) {
      }
      for (const char* color : {"red", "green", "other"}) {
        for (const char* size : {"s", "l"}) ++grid(color, size).value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(family.series.size(), 6u);
  for (const auto& [labels, series] : family.series) EXPECT_EQ(series->value, 8);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
