// .npy files: those of numpy, round trips, and a table of hostile ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "kernels/tensor/files/tensor_file.h"
#include "tests/tensor/scratch_file.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const std::string kData = std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/tensor_files/";

std::string FileBytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(ReadNpy, FilesOfNumpy) {
  const Tensor f32 = *ReadNpy(kData + "f32.npy");
  EXPECT_EQ(TensorText(f32), "f32[2x3]");
  EXPECT_EQ(f32.as<float>()[5], 5.0f);
  const Tensor bf16 = *ReadNpy(kData + "bf16.npy");
  EXPECT_EQ(TensorText(bf16), "bf16[2]");
  EXPECT_EQ(bf16.as<uint16_t>()[1], 0xC000);
  EXPECT_EQ(TensorText(*ReadNpy(kData + "empty.npy")), "f16[0x4]");
  EXPECT_EQ(TensorText(*ReadNpy(kData + "u8.npy")), "u8[3]");
  EXPECT_EQ(*ReadNpy(kData + "i64.npy")->as<int64_t>(), -5);
  const Tensor scalar = *ReadNpy(kData + "scalar.npy");
  EXPECT_EQ(TensorText(scalar), "f64[scalar]");
  EXPECT_EQ(*scalar.as<double>(), 2.5);
}

/// The files written are numpy's own, byte for byte.
TEST(WriteNpy, WritesWhatNumpyWrites) {
  for (const std::string name : {"f32", "bf16", "empty", "u8", "i64", "scalar"}) {
    const ScratchFile file(name + ".npy");
    ASSERT_TRUE(WriteNpy(file.path(), *ReadNpy(kData + name + ".npy")).ok());
    EXPECT_EQ(FileBytes(file.path()), FileBytes(kData + name + ".npy")) << name;
  }
}

TEST(WriteNpy, RefusesTypesNumpyCannotName) {
  const ScratchFile file("fp8.npy");
  const absl::Status status = WriteNpy(file.path(), *Tensor::Allocate(DType::kF8E4M3, {2}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no type for f8_e4m3"));
}

std::string Npy(const std::string& header, size_t data_bytes,
                const std::string& version = std::string("\x01\x00", 2)) {
  std::string bytes = "\x93NUMPY" + version;
  bytes.push_back(static_cast<char>(header.size() & 0xFF));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  if (version[0] != 1) bytes += std::string(2, '\0');
  return bytes + header + std::string(data_bytes, 'x');
}

std::string Header(const std::string& descr, const std::string& shape,
                   const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

TEST(ReadNpy, LaterVersionsAndTightSpacing) {
  const ScratchFile two("two.npy", Npy(Header("<f4", "(2,)"), 8, std::string("\x02\x00", 2)));
  EXPECT_EQ(TensorText(*ReadNpy(two.path())), "f32[2]");
  const ScratchFile three("three.npy",
                          Npy("{\"shape\":(2,1),\"descr\":\"<i4\",\"fortran_order\":False}", 8,
                              std::string("\x03\x00", 2)));
  EXPECT_EQ(TensorText(*ReadNpy(three.path())), "i32[2x1]");
}

// Whoever opens a pipe waits for its writer, which an interrupt does not end.
// What numpy 2.4.6 writes of arrays of ml_dtypes 0.6.0.
TEST(ReadNpy, Float8OfMlDtypes) {
  const ScratchFile e5m2("e5m2.npy", Npy(Header("<f1", "(2, 2)"), 4));
  EXPECT_EQ(TensorText(*ReadNpy(e5m2.path())), "f8_e5m2[2x2]");
  for (const char* descr : {"<V1", "|V1"}) {
    const ScratchFile file("v1.npy", Npy(Header(descr, "(2, 2)"), 4));
    const absl::Status unsaid = ReadNpy(file.path()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(unsaid));
    EXPECT_THAT(std::string(unsaid.message()), HasSubstr("append @f8_e4m3"));
    EXPECT_EQ(TensorText(*ReadNpy(file.path(), DType::kF8E4M3)), "u8[2x2]");
    // A byte of theirs has one code, of ours two.
    EXPECT_THAT(std::string(ReadNpy(file.path(), DType::kF4E2M1x2).status().message()),
                HasSubstr("one code a byte"));
  }
}

TEST(ReadNpy, APipeIsNoFile) {
  const ScratchFile pipe("pipe.npy");
  ASSERT_EQ(::mkfifo(pipe.path().c_str(), 0600), 0);
  const absl::Status status = ReadNpy(pipe.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a regular file"));
}

TEST(ReadNpy, MalformedFilesAreRefusedByNameAndRule) {
  struct Malformed {
    const char* name;
    std::string bytes;
    const char* message;
  };
  const Malformed files[] = {
      {"empty", "", "does not begin as a .npy file"},
      {"magic", "NUMPY\x01\x00 and more", "does not begin as a .npy file"},
      {"version", Npy(Header("<f4", "(2,)"), 8, std::string("\x04\x00", 2)),
       "version 4.0 is not 1.0, 2.0 or 3.0"},
      {"cut_length", std::string("\x93NUMPY\x02\x00\x10\x00", 10), "ends inside its header"},
      {"length_beyond_file", std::string("\x93NUMPY\x01\x00\xFF\x00{", 11),
       "header length 255 is over the limit"},
      {"length_huge", std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF{", 13),
       "header length 4294967295 is over the limit"},
      {"not_dict", Npy("[1]", 0), "header must be a dict"},
      {"unterminated", Npy("{'descr", 0), "unterminated"},
      {"no_comma", Npy("{'descr': '<f4' 'shape': (1,)}", 4), "without a comma"},
      {"no_colon", Npy("{'descr' '<f4'}", 0), "key without a colon"},
      {"missing_shape", Npy("{'descr': '<f4', 'fortran_order': False}", 0),
       "lacks one of descr, fortran_order, shape"},
      {"unknown_key", Npy("{'other': '<f4'}", 0), "unknown or repeated key 'other'"},
      {"repeated_key", Npy("{'descr': '<f4', 'descr': '<f4'}", 0),
       "unknown or repeated key 'descr'"},
      {"trailing", Npy(Header("<f4", "(1,)") + "x", 4), "text behind the dict"},
      {"fortran", Npy(Header("<f4", "(1,)", "True"), 4), "only C order is read"},
      {"order_not_bool", Npy(Header("<f4", "(1,)", "0"), 4), "neither True nor False"},
      {"big_endian", Npy(Header(">f4", "(1,)"), 4), "descr '>f4' is not one of <f8, <f4"},
      {"object", Npy(Header("|O", "(1,)"), 8), "descr '|O' is not one of"},
      {"structured", Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4),
       "where a string must be"},
      {"shape_list", Npy(Header("<f4", "[1]"), 4), "shape that is not a tuple"},
      {"shape_word", Npy(Header("<f4", "(one,)"), 4), "not an int64"},
      {"shape_overflow", Npy(Header("<f4", "(99999999999999999999,)"), 4), "not an int64"},
      {"shape_no_comma", Npy(Header("<f4", "(1 2)"), 8), "without a comma between dims"},
      {"negative", Npy(Header("<f4", "(-1,)"), 4), "shape[0] is -1"},
      {"product", Npy(Header("<f4", "(4294967296, 4294967296)"), 4), "overflows at dim 1"},
      {"rank", Npy(Header("<f4", "(1,1,1,1,1,1,1,1,1)"), 4), "more than 8 dims"},
      {"too_short", Npy(Header("<f4", "(2,)"), 7), "takes 8 bytes, the file has 7"},
      {"too_long", Npy(Header("<f4", "(2,)"), 9), "takes 8 bytes, the file has 9"},
  };
  for (const Malformed& malformed : files) {
    const ScratchFile file(std::string(malformed.name) + ".npy", malformed.bytes);
    const auto read = ReadNpy(file.path());
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << malformed.name;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(malformed.message))
        << malformed.name;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(file.path())) << malformed.name;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
