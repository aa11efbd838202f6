// The states of a shared buffer, its epochs, and what a stale view says.
#include "kernels/comm/overlap/overlap_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::HasSubstr;

class OverlapBufferTest : public testing::Test {
 protected:
  /// Through all states to READABLE, with every byte `value`.
  BufferView Filled(OverlapBuffer& buffer, const std::string& owner, uint8_t value) {
    auto parts = buffer.Fill(owner, {{DType::kU8, {300}}, {DType::kF32, {2, 3}}});
    EXPECT_TRUE(parts.ok()) << parts.status();
    for (Tensor& part : *parts) std::fill_n(part.data(), part.byte_size(), std::byte{value});
    EXPECT_TRUE(buffer.Start().ok());
    auto view = buffer.Finish();
    EXPECT_TRUE(view.ok()) << view.status();
    return *view;
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_F(OverlapBufferTest, GoesThroughItsStates) {
  OverlapBuffers buffers(*engine_);
  const auto buffer = buffers.BufferFor("fc1_fprop", "mxfp8");
  EXPECT_EQ(buffer->name(), "fc1_fprop (mxfp8)");
  EXPECT_EQ(buffer->state(), BufferState::kFree);
  ASSERT_TRUE(buffer->Fill("layer0", {{DType::kU8, {4}}}).ok());
  EXPECT_EQ(buffer->state(), BufferState::kFilled);
  ASSERT_TRUE(buffer->Start().ok());
  EXPECT_EQ(buffer->state(), BufferState::kInFlight);
  auto view = buffer->Finish();
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(buffer->state(), BufferState::kReadable);
  const auto parts = view->Read();
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->at(0).shape(), (Shape{4}));
  ASSERT_TRUE(view->Release().ok());
  EXPECT_EQ(buffer->state(), BufferState::kFree);
}

TEST_F(OverlapBufferTest, OnlyTheNextStateIsNext) {
  OverlapBuffers buffers(*engine_);
  const auto buffer = buffers.BufferFor("proj_fprop", "none");
  EXPECT_THAT(buffer->Start().message(), AllOf(HasSubstr("is FREE"), HasSubstr("must be FILLED")));
  EXPECT_EQ(buffer->Finish().status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(buffer->Fill("layer0", {{DType::kU8, {4}}}).ok());
  const absl::Status again = buffer->Fill("layer1", {{DType::kU8, {4}}}).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(again.message(),
              AllOf(HasSubstr("proj_fprop (none)"), HasSubstr("layer1 cannot fill it"),
                    HasSubstr("FILLED under epoch 1, filled by layer0")));
}

TEST_F(OverlapBufferTest, LayersOfOneNameAndModeShareOneMemory) {
  OverlapBuffers buffers(*engine_);
  EXPECT_EQ(buffers.BufferFor("fc1_fprop", "mxfp8"), buffers.BufferFor("fc1_fprop", "mxfp8"));
  EXPECT_NE(buffers.BufferFor("fc1_fprop", "mxfp8"), buffers.BufferFor("fc1_fprop", "none"));
  const auto buffer = buffers.BufferFor("fc1_fprop", "mxfp8");
  BufferView first = Filled(*buffer, "layer0", 1);
  const std::byte* const memory = first.Read()->at(0).data();
  ASSERT_TRUE(first.Release().ok());
  BufferView second = Filled(*buffer, "layer1", 2);
  EXPECT_EQ(second.Read()->at(0).data(), memory);
}

TEST_F(OverlapBufferTest, WhatIsTakenIsNobodyElsesAnyMore) {
  OverlapBuffers buffers(*engine_);
  const auto buffer = buffers.BufferFor("fc1_fprop", "mxfp8");
  BufferView first = Filled(*buffer, "layer0", 1);
  BufferView stale = first;
  const auto taken = first.Take();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(buffer->state(), BufferState::kFree);
  BufferView second = Filled(*buffer, "layer1", 2);
  ASSERT_EQ(taken->size(), 2u);
  for (size_t part = 0; part < 2; ++part) {
    EXPECT_NE(second.Read()->at(part).data(), taken->at(part).data());
    for (const std::byte byte : taken->at(part).bytes()) ASSERT_EQ(byte, std::byte{1});
  }
  EXPECT_THAT(stale.Take().status().message(), HasSubstr("the view of epoch 1"));
  EXPECT_EQ(buffer->state(), BufferState::kReadable);
  EXPECT_EQ(BufferView(*taken).Take()->at(1).data(), taken->at(1).data());
}

TEST_F(OverlapBufferTest, PartsDoNotTouch) {
  OverlapBuffers buffers(*engine_);
  const BufferView view = Filled(*buffers.BufferFor("b", "m"), "layer0", 7);
  const std::vector<Tensor> parts = *view.Read();
  EXPECT_EQ(parts[1].shape(), (Shape{2, 3}));
  EXPECT_GE(parts[1].data(), parts[0].data() + parts[0].byte_size());
  EXPECT_EQ((parts[1].data() - parts[0].data()) % 256, 0);
}

TEST_F(OverlapBufferTest, AStaleViewSaysWhoseMemoryItIs) {
  OverlapBuffers buffers(*engine_);
  const auto buffer = buffers.BufferFor("fc1_fprop", "fp8_tensor");
  BufferView first = Filled(*buffer, "layer0", 1);
  const BufferView kept = first;
  ASSERT_TRUE(first.Release().ok());
  const absl::Status released = kept.Read().status();
  EXPECT_EQ(released.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(released.message(), HasSubstr("FREE"));

  const BufferView second = Filled(*buffer, "layer1", 2);
  const absl::Status stale = kept.Read().status();
  EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(stale.message(),
              AllOf(HasSubstr("fc1_fprop (fp8_tensor)"), HasSubstr("epoch 1, filled by layer0"),
                    HasSubstr("is stale"), HasSubstr("epoch 2, filled by layer1")));
  EXPECT_EQ(BufferView(kept).Release().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(second.Read().ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
