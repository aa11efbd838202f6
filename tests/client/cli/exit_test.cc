#include "client/cli/exit.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "client/blob_transfer.h"
#include "client/cli/commands/bench_engine.h"
#include "client/tensor_name.h"

namespace quantgate {
namespace QG_TEST_FILE {

// Maps a tensor of a mebibyte, cuts its file and reads it.
void ReadTensorOfCutFile(const std::filesystem::path& path) {
  std::ofstream(path, std::ios::binary)
      << "\x93NUMPY\x01" << '\0' << "v" << '\0'
      << "{'descr': '<f4', 'fortran_order': False, 'shape': (512, 512), }" << std::string(54, ' ')
      << '\n'
      << std::string(1 << 20, 'x');
  const auto name = ParseTensorName("--input", path.string());
  if (!name.ok()) std::_Exit(100);
  const auto tensor = LoadTensor(*name);
  if (!tensor.ok()) std::_Exit(101);
  std::filesystem::resize_file(path, 4096);
  (void)DigestOf(tensor->bytes());
  std::_Exit(102);
}

TEST(ExitWhenMappedFilesShrinkTest, ACutFileEndsTheProgramWithASentence) {
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / ("cut-" + std::to_string(::getpid()) + ".npy");
  EXPECT_EXIT(
      {
        ExitWhenMappedFilesShrink();
        ReadTensorOfCutFile(path);
      },
      ::testing::ExitedWithCode(kExitService), "a tensor file became shorter");
  std::filesystem::remove(path);
}

// An hour of repetitions, unless the interrupt ends them.
[[noreturn]] void MeasureInterrupted() {
  StartInterruptThread();
  ::kill(::getpid(), SIGINT);
  while (!WasInterrupted()) std::this_thread::yield();
  int repetitions = 0;
  BestRate(/*units=*/1, /*seconds=*/3600, [&] { ++repetitions; });
  std::_Exit(repetitions == 0 ? kExitCancelled : 1);
}

TEST(BenchTest, AnInterruptEndsAMeasurement) {
  EXPECT_EXIT(MeasureInterrupted(), ::testing::ExitedWithCode(kExitCancelled), "");
}

TEST(BenchTest, AnErrorOfTheProgressEndsIt) {
  const auto lines = BenchEngine(
      /*seconds=*/3600, [](const std::string&) { return absl::CancelledError("interrupted"); });
  EXPECT_TRUE(absl::IsCancelled(lines.status()));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
