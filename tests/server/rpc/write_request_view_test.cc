#include "server/rpc/write_request_view.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <random>

namespace quantgate {
namespace QG_TEST_FILE {

/// `bytes` as a message that arrived in slices of `slice_bytes`.
std::unique_ptr<grpc::ByteBuffer> Buffered(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_bytes)
    slices.emplace_back(bytes.substr(at, slice_bytes));
  return std::make_unique<grpc::ByteBuffer>(slices.data(), slices.size());
}

std::string Data(const WriteRequestView& view) {
  std::string data;
  for (const auto piece : view.pieces())
    data.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return data;
}

v1::WriteRequest Sample() {
  v1::WriteRequest request;
  request.mutable_header()->set_upload_id("upload");
  request.mutable_header()->mutable_digest()->set_sha256(std::string(32, 's'));
  request.mutable_header()->mutable_digest()->set_size(int64_t{1} << 40);
  request.mutable_header()->set_offset(-1);
  request.set_data(std::string(1000, 'd'));
  request.set_crc32c(0xDEADBEEF);
  return request;
}

TEST(WriteRequestViewTest, SeesWhatProtobufSees) {
  const v1::WriteRequest request = Sample();
  for (const size_t slice : {size_t{1}, size_t{7}, size_t{1 << 20}}) {
    const auto view = WriteRequestView::Parse(Buffered(request.SerializeAsString(), slice));
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->header()->SerializeAsString(), request.header().SerializeAsString());
    EXPECT_EQ(Data(*view), request.data());
    EXPECT_EQ(view->size(), 1000);
    EXPECT_EQ(view->crc32c(), 0xDEADBEEF);
  }
}

TEST(WriteRequestViewTest, AnEmptyMessageIsEmpty) {
  const auto view = WriteRequestView::Parse(Buffered("", 1));
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(view->header().has_value());
  EXPECT_FALSE(view->crc32c().has_value());
  EXPECT_EQ(view->size(), 0);
}

TEST(WriteRequestViewTest, SkipsFieldsOfLaterVersions) {
  // Fields 100 to 103 in every wire type but groups, between known ones.
  const std::string unknown = std::string("\xA0\x06\x96\x01", 4) + std::string("\xA9\x06") +
                              std::string(8, 'x') + std::string("\xB2\x06\x03") + "abc" +
                              std::string("\xBD\x06") + std::string(4, 'y');
  const auto view =
      WriteRequestView::Parse(Buffered(unknown + Sample().SerializeAsString() + unknown, 5));
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->size(), 1000);
}

TEST(WriteRequestViewTest, RefusesWhatProtobufRefuses) {
  const google::protobuf::LogSilencer silencer;  // Says what is wrong with every string.
  const std::string good = Sample().SerializeAsString();
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good.substr(0, random() % good.size());
    for (unsigned spoiled = random() % 4; spoiled > 0 && !bytes.empty(); --spoiled) {
      bytes[random() % std::min<size_t>(bytes.size(), 64)] = static_cast<char>(random());
    }
    v1::WriteRequest parsed;
    const bool is_good = parsed.ParseFromString(bytes);
    const auto view = WriteRequestView::Parse(Buffered(bytes, 1 + random() % 40));
    if (view.ok() && is_good) {
      EXPECT_EQ(Data(*view), parsed.data());
    }
    // Protobuf takes groups of unknown numbers, which nothing writes; apart from them both agree.
    if (!is_good) {
      EXPECT_FALSE(view.ok());
    }
    refused += view.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
