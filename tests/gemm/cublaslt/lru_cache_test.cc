#include "kernels/gemm/cublaslt/lru_cache.h"

#include <gtest/gtest.h>

#include <string>

namespace quantgate {
namespace QG_TEST_FILE {

TEST(LruCacheTest, DropsTheLeastRecentlyUsed) {
  LruCache<int> cache(3);
  cache.Insert("one", 1);
  cache.Insert("two", 2);
  cache.Insert("three", 3);
  ASSERT_NE(cache.Find("one"), nullptr);  // Now "two" is the oldest.
  EXPECT_EQ(cache.Insert("four", 4), 4);
  EXPECT_EQ(cache.size(), 3u);
  EXPECT_EQ(cache.Find("two"), nullptr);
  for (const auto& [key, value] : {std::pair("one", 1), {"three", 3}, {"four", 4}}) {
    ASSERT_NE(cache.Find(key), nullptr) << key;
    EXPECT_EQ(*cache.Find(key), value);
  }
}

TEST(LruCacheTest, StaysBounded) {
  LruCache<int> cache(16);
  for (int i = 0; i < 1000; ++i) {
    cache.Insert(std::to_string(i), i);
    EXPECT_LE(cache.size(), 16u);
    EXPECT_EQ(cache.Find(std::to_string(i - 16)), nullptr);
    ASSERT_NE(cache.Find(std::to_string(i)), nullptr);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
