// safetensors files: one written by the official package, round trips, and a table of hostile ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "kernels/tensor/files/tensor_file.h"
#include "tests/tensor/scratch_file.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const std::string kData = std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/tensor_files/";

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  return {tensor.as<T>(), tensor.as<T>() + tensor.element_count()};
}

TEST(ReadSafetensors, OfficialFile) {
  const TensorFile file = *ReadSafetensors(kData + "official.safetensors");
  EXPECT_EQ(file.tensors.size(), 8u);
  EXPECT_THAT(file.metadata.at("origin"), HasSubstr("safetensors"));
  const auto find = [&](std::string_view name) { return *file.Find(name); };
  EXPECT_EQ(TensorText(find("f32")), "f32[2x3]");
  EXPECT_EQ(Values<float>(find("f32")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Values<uint16_t>(find("bf16")), (std::vector<uint16_t>{0x3FC0, 0xC000}));
  EXPECT_EQ(TensorText(find("empty")), "f16[0x4]");
  EXPECT_EQ(Values<uint8_t>(find("e4m3")), (std::vector<uint8_t>{0x7E, 0x80}));
  EXPECT_EQ(Values<uint8_t>(find("e5m2")), (std::vector<uint8_t>{0x7B}));
  EXPECT_EQ(Values<int64_t>(find("i64")), (std::vector<int64_t>{-5}));
  EXPECT_EQ(TensorText(find("scalar")), "f64[scalar]");
  EXPECT_EQ(Values<double>(find("scalar")), (std::vector<double>{2.5}));
  const auto absent = file.Find("weight");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.status().message()),
              HasSubstr("no tensor \"weight\"; the file has i64, scalar"));
}

TEST(ReadSafetensors, SampleTensors) {
  const TensorFile file =
      *ReadSafetensors(std::string(QUANTGATE_SOURCE_DIR) + "/data/bytegpt_block1.safetensors");
  EXPECT_EQ(TensorText(*file.Find("fc1.weight")), "bf16[2048x512]");
  EXPECT_FALSE(file.metadata.at("origin").empty());
}

TEST(ReadSafetensors, MissingFileAndDirectory) {
  EXPECT_EQ(ReadSafetensors(kData + "absent.safetensors").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadSafetensors(kData).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WriteSafetensors, RoundTrip) {
  const ScratchFile file("round_trip.safetensors");
  const uint8_t bytes[] = {1, 2, 3};
  const float floats[] = {1.5f, -0.0f};
  const std::vector<NamedTensor> tensors = {
      {"odd \"name\" \n \xC3\xA9",
       *Tensor::FromBytes(DType::kU8, {3}, std::as_bytes(std::span(bytes)))},
      {"misaligned", *Tensor::FromBytes(DType::kF32, {2}, std::as_bytes(std::span(floats)))},
      {"empty", *Tensor::Allocate(DType::kBF16, {0, 7})},
      {"packed", *Tensor::FromBytes(DType::kF4E2M1x2, {1, 3}, std::as_bytes(std::span(bytes)))},
  };
  ASSERT_TRUE(WriteSafetensors(file.path(), tensors, {{"origin", "a \"test\""}}).ok());
  const TensorFile read = *ReadSafetensors(file.path());
  ASSERT_EQ(read.tensors.size(), tensors.size());
  EXPECT_EQ(read.metadata.at("origin"), "a \"test\"");
  for (const NamedTensor& named : tensors) {
    const Tensor tensor = *read.Find(named.name);
    EXPECT_EQ(TensorText(tensor), TensorText(named.tensor));
    EXPECT_EQ(std::memcmp(tensor.data(), named.tensor.data(), tensor.byte_size()), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % DTypeBytes(tensor.dtype()), 0u);
  }
  // Writing again replaces the file; the first reader keeps what it mapped.
  ASSERT_TRUE(WriteSafetensors(file.path(), {}, {}).ok());
  EXPECT_TRUE(ReadSafetensors(file.path())->tensors.empty());
  EXPECT_EQ(read.Find("misaligned")->as<float>()[0], 1.5f);
}

TEST(WriteSafetensors, DataBeginsOnACacheLine) {
  const ScratchFile file("aligned.safetensors");
  ASSERT_TRUE(WriteSafetensors(file.path(), {{"x", *Tensor::Allocate(DType::kU8, {1})}}, {}).ok());
  std::ifstream stream(file.path(), std::ios::binary);
  uint64_t header_bytes = 0;
  stream.read(reinterpret_cast<char*>(&header_bytes), 8);
  EXPECT_EQ((8 + header_bytes) % 64, 0u);
}

TEST(SafetensorsBytes, AreThoseOfTheFile) {
  const ScratchFile file("bytes.safetensors");
  std::vector<NamedTensor> tensors = {{"x", *Tensor::FromScalar(1.5f)},
                                      {"empty", *Tensor::Allocate(DType::kBF16, {0, 7})},
                                      {"y", *Tensor::FromScalar(-2.0f)}};
  const std::map<std::string, std::string> metadata = {{"origin", "a test"}};
  ASSERT_TRUE(WriteSafetensors(file.path(), tensors, metadata).ok());
  std::ifstream stream(file.path(), std::ios::binary);
  const std::string written(std::istreambuf_iterator<char>(stream), {});
  const Tensor bytes = *SafetensorsBytes(tensors, metadata);
  EXPECT_EQ(std::string(bytes.as<char>(), bytes.byte_size()), written);
  tensors.push_back(tensors[0]);
  EXPECT_EQ(SafetensorsBytes(tensors, metadata).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WriteSafetensors, RefusesWhatItCouldNotReadBack) {
  const Tensor x = *Tensor::Allocate(DType::kU8, {1});
  const ScratchFile file("refused.safetensors");
  const auto message = [&](const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata) {
    const absl::Status status = WriteSafetensors(file.path(), tensors, metadata);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({{"x", x}, {"x", x}}, {}), HasSubstr("given twice"));
  EXPECT_THAT(message({{"__metadata__", x}}, {}), HasSubstr("not __metadata__"));
  EXPECT_THAT(message({{"\xFF", x}}, {}), HasSubstr("must be UTF-8"));
  EXPECT_THAT(message({{"x", Tensor()}}, {}), HasSubstr("absent"));
  EXPECT_THAT(message({}, {{"k", "\xFF"}}), HasSubstr("must be UTF-8"));
  EXPECT_EQ(WriteSafetensors("/nonexistent-directory/x", {}, {}).code(),
            absl::StatusCode::kNotFound);
}

std::string WithLength(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

/// A file whose header length is right.
std::string File(const std::string& header, size_t data_bytes) {
  return WithLength(header.size(), header + std::string(data_bytes, 'x'));
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* message;
};

std::vector<Malformed> MalformedFiles() {
  const auto tensor = [](const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  const std::string a = tensor("a", "U8", "[4]", "[0,4]");
  std::string wide_shape = "[1";
  for (int i = 0; i < 100; ++i) wide_shape += ",1";
  return {
      {"empty", "", "has 0 bytes"},
      {"short", "1234567", "has 7 bytes"},
      {"length_beyond_file", WithLength(100, "{}"),
       "header length 100 is beyond the file's 10 bytes"},
      {"length_huge", WithLength(~uint64_t{0}, "{}"), "is over the limit of 16777216"},
      {"length_over_limit", WithLength((16u << 20) + 1, "{}"), "is over the limit"},
      {"not_json", File("hello", 0), "header is not valid JSON at byte 1"},
      {"truncated_json", File("{\"a\":", 0), "header is not valid JSON"},
      {"trailing_text", File("{} {}", 0), "header is not valid JSON"},
      {"invalid_utf8", File("{\"\xFF\":1}", 0), "header is not valid JSON"},
      {"array", File("[]", 0), "header is not a JSON object"},
      {"number", File("7", 0), "header is not a JSON object"},
      {"deep", File("{\"a\":" + std::string(100000, '['), 0), "has an array as the value of \"a\""},
      {"deep_objects", File("{\"a\":{\"b\":{\"c\":{}}}}", 0), "has the unknown key \"b\""},
      {"nested_shape", File("{" + tensor("a", "U8", "[[4]]", "[0,4]") + "}", 4),
       "has an array in \"shape\""},
      {"object_in_entry", File("{\"a\":{\"dtype\":{}}}", 0), "has a nested object in \"dtype\""},
      {"value_not_object", File("{\"a\":3}", 0), "has a number as the value of \"a\""},
      {"null", File("{\"a\":{\"dtype\":null}}", 0), "tensor \"a\" has null in \"dtype\""},
      {"float_dim", File("{" + tensor("a", "U8", "[4.0]", "[0,4]") + "}", 4),
       "not a 64-bit integer"},
      {"negative_dim", File("{" + tensor("a", "U8", "[-4]", "[0,4]") + "}", 4),
       "a negative number"},
      {"dim_over_uint64", File("{" + tensor("a", "U8", "[99999999999999999999]", "[0,4]") + "}", 4),
       "not a 64-bit integer"},
      {"dim_over_int64", File("{" + tensor("a", "U8", "[9223372036854775808]", "[0,4]") + "}", 4),
       "dims must fit int64"},
      {"dims_overflow", File("{" + tensor("a", "U8", "[4294967296,4294967296]", "[0,4]") + "}", 4),
       "overflows at dim 1"},
      {"bytes_overflow", File("{" + tensor("a", "F32", "[4611686018427387904]", "[0,4]") + "}", 4),
       "size in bytes must fit int64"},
      {"rank", File("{" + tensor("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1),
       "shape is of rank 9: its rank must be at most 8"},
      {"rank_huge", File("{" + tensor("a", "U8", wide_shape + "]", "[0,1]") + "}", 1),
       "array of more than 8 numbers"},
      {"string_offsets", File("{\"a\":{\"data_offsets\":[\"0\"]}}", 0),
       "has a string in \"data_offsets\""},
      {"one_offset", File("{" + tensor("a", "U8", "[4]", "[4]") + "}", 4),
       "data_offsets must be two numbers"},
      {"reversed_offsets", File("{" + tensor("a", "U8", "[4]", "[4,0]") + "}", 4),
       "not a range within the 4 bytes"},
      {"out_of_range", File("{" + tensor("a", "U8", "[8]", "[0,8]") + "}", 4),
       "not a range within the 4 bytes"},
      {"offset_wraps",
       File("{" + tensor("a", "U8", "[4]", "[18446744073709551612,18446744073709551615]") + "}", 4),
       "not a range"},
      {"wrong_size", File("{" + tensor("a", "F32", "[4]", "[0,4]") + "}", 4),
       "hold 4 bytes; F32 of shape 4 takes 16"},
      {"unknown_dtype", File("{" + tensor("a", "F6_E2M3", "[4]", "[0,4]") + "}", 4),
       "dtype is \"F6_E2M3\": unknown name"},
      {"odd_fp4", File("{" + tensor("a", "F4", "[3]", "[0,2]") + "}", 2),
       "4-bit elements and an odd last dim"},
      {"lacks_shape", File("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4),
       "lacks one of dtype, shape, data_offsets"},
      {"duplicate_tensor", File("{" + a + "," + a + "}", 4), "header names \"a\" twice"},
      {"duplicate_key", File("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 4),
       "has \"dtype\" twice"},
      {"overlap", File("{" + a + "," + tensor("b", "U8", "[4]", "[2,6]") + "}", 6),
       "tensor \"b\" begins at 2 where another tensor lies up to 4"},
      {"same_bytes", File("{" + a + "," + tensor("b", "U8", "[4]", "[0,4]") + "}", 4),
       "another tensor lies up to 4"},
      {"hole", File("{" + a + "," + tensor("b", "U8", "[1]", "[5,6]") + "}", 6),
       "tensor \"b\" begins at 5 where a hole begins at 4"},
      {"hole_at_start", File("{" + tensor("a", "U8", "[4]", "[1,5]") + "}", 5),
       "begins at 1 where a hole begins at 0"},
      {"bytes_behind", File("{" + a + "}", 5), "the tensors end at byte 4 of data, the file at 5"},
      {"metadata_number", File("{\"__metadata__\":{\"a\":1}}", 0), "has a number in __metadata__"},
      {"metadata_twice", File("{\"__metadata__\":{},\"__metadata__\":{}}", 0),
       "names \"__metadata__\" twice"},
      {"metadata_key_twice", File("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0),
       "metadata key \"k\" twice"},
      {"metadata_nested", File("{\"__metadata__\":{\"k\":{}}}", 0),
       "a nested object in __metadata__"},
  };
}

TEST(ReadSafetensors, OneTensorBesideOthersOfUnknownDtype) {
  const std::string header = R"({"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
                             R"("codes":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})";
  const ScratchFile file("masked", WithLength(header.size(), header + "mmmAB"));
  const auto codes = ReadSafetensorsTensor(file.path(), "codes");
  ASSERT_TRUE(codes.ok()) << codes.status();
  EXPECT_EQ(Values<uint8_t>(*codes), (std::vector<uint8_t>{'A', 'B'}));
  const auto mask = ReadSafetensorsTensor(file.path(), "mask");
  EXPECT_EQ(mask.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(mask.status().message()),
      HasSubstr("tensor \"mask\": dtype is \"BOOL\": unknown name; known: F64, F32, BF16, F16, "
                "F8_E4M3, F8_E5M2, F8_E8M0, U8, I32, I64, F4, I16"));
  const auto absent = ReadSafetensorsTensor(file.path(), "x");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr(file.path() + ": no tensor"));
  // Of a file that is read whole nothing is left out.
  EXPECT_EQ(ReadSafetensors(file.path()).status().code(), absl::StatusCode::kInvalidArgument);
  const auto known = ReadKnownSafetensors(file.path());
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->tensors.size(), 1u);
  EXPECT_EQ(known->unread, (std::map<std::string, std::string>{{"mask", "BOOL"}}));
  EXPECT_EQ(known->Find("mask").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReadSafetensors, RangesOfUnknownDtypesAreCheckedToo) {
  const std::string u8 = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[3,5]})";
  for (const char* offsets : {"[0,2]", "[1,3]", "[0,4]", "[0,9]", "[3,0]"}) {
    const std::string header = std::string(R"({"mask":{"dtype":"BOOL","shape":[3],)") +
                               R"("data_offsets":)" + offsets + "}," + u8 + "}";
    const ScratchFile file("range", File(header, 5));
    EXPECT_EQ(ReadSafetensorsTensor(file.path(), "a").status().code(),
              absl::StatusCode::kInvalidArgument)
        << offsets;
  }
}

TEST(TensorFile, ListsNamesShortAndEscaped) {
  TensorFile file;
  EXPECT_EQ(file.NameList(), "none");
  file.tensors = {{"x", {}}, {"a\x1b[31m", {}}, {"", {}}};
  EXPECT_EQ(file.NameList(), "x, \"a\\u001b[31m\", \"\"");
  file.tensors.assign(40, {"w", {}});
  EXPECT_THAT(file.NameList(), testing::EndsWith("w, w, 8 more"));
}

TEST(ReadSafetensors, MalformedFilesAreRefusedByNameAndRule) {
  for (const Malformed& malformed : MalformedFiles()) {
    const ScratchFile file(malformed.name, malformed.bytes);
    const auto read = ReadSafetensors(file.path());
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << malformed.name;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(malformed.message))
        << malformed.name;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(file.path())) << malformed.name;
  }
}

/// A megabyte of names is read; a megabyte-long name does not fill the message.
TEST(ReadSafetensors, LongNamesAreCutInMessages) {
  const std::string name(1 << 20, 'n');
  const ScratchFile file("long_name.safetensors", File("{\"" + name + "\":{}}", 0));
  const auto read = ReadSafetensors(file.path());
  EXPECT_LT(read.status().message().size(), 500u);
}

/// Every truncation of a valid file is refused, or is the file.
TEST(ReadSafetensors, Truncations) {
  std::ifstream stream(kData + "official.safetensors", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto buffer = *Buffer::Allocate(length);
    std::memcpy(buffer->data(), bytes.data(), length);
    EXPECT_EQ(ParseSafetensors(buffer, "cut").status().code(), absl::StatusCode::kInvalidArgument)
        << length;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
