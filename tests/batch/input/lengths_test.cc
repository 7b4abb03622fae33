#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "contextile/data.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Lengths = std::vector<std::int64_t>;
using Bytes = std::vector<std::uint8_t>;

// The expectation in every message.
const std::string kLength = fmt::format("1 to {} tokens", kMaxTokens);

std::string text_message(std::string_view text) {
  return message_of([&] { return parse_lengths_text(text, "length", "f"); });
}
std::string npy_message(const Bytes& bytes) {
  return message_of([&] { return parse_lengths_npy(bytes, "f"); });
}
std::string idx_message(const Bytes& bytes) {
  return message_of([&] { return parse_lengths_idx(bytes, "f"); });
}
Lengths parse_text(std::string_view text) { return parse_lengths_text(text, "length", "f"); }

void append(Bytes& bytes, std::string_view text) {
  for (const char c : text) bytes.push_back(static_cast<std::uint8_t>(c));
}
template <typename T>
void append_number(Bytes& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(T));
  std::memcpy(bytes.data() + bytes.size() - sizeof(T), &value, sizeof(T));
}

Bytes npy_with_header(const std::string& header, int major = 1) {
  Bytes bytes;
  append(bytes, "\x93NUMPY");
  bytes.push_back(static_cast<std::uint8_t>(major));
  bytes.push_back(0);
  if (major == 1) {
    append_number(bytes, static_cast<std::uint16_t>(header.size()));
  } else {
    append_number(bytes, static_cast<std::uint32_t>(header.size()));
  }
  append(bytes, header);
  return bytes;
}

// A file like numpy.save's: the header padded with spaces to a multiple of 64.
template <typename T>
Bytes npy(const std::string& descr, const std::vector<T>& values, int major = 1) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
                                   descr, values.size());
  const std::size_t before = major == 1 ? 10 : 12;
  header.append(63 - (before + header.size()) % 64, ' ');
  Bytes bytes = npy_with_header(header + '\n', major);
  for (const T value : values) append_number(bytes, value);
  return bytes;
}

// A file like those of Megatron-LM's IndexedDatasetBuilder, one sequence in each document.
Bytes idx(const std::vector<std::int32_t>& lengths, bool modes = false) {
  constexpr std::int64_t kBytesPerToken = 2;
  Bytes bytes;
  append(bytes, std::string_view("MMIDIDX\0\0", 9));
  append_number(bytes, std::uint64_t{1});
  append_number(bytes, std::uint8_t{8});
  append_number(bytes, static_cast<std::uint64_t>(lengths.size()));
  append_number(bytes, static_cast<std::uint64_t>(lengths.size() + 1));
  for (const std::int32_t length : lengths) append_number(bytes, length);
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths) {
    append_number(bytes, pointer);
    pointer += length * kBytesPerToken;
  }
  for (std::size_t i = 0; i <= lengths.size(); ++i)
    append_number(bytes, static_cast<std::int64_t>(i));
  if (modes) bytes.resize(bytes.size() + lengths.size());
  return bytes;
}

// ---------------------------------------------------------------------------------------- text

TEST(LengthsText, ReadsOneNumberALine) {
  EXPECT_THAT(parse_text("7\n12\n3\n"), ElementsAre(7, 12, 3));
  EXPECT_THAT(parse_text("7"), ElementsAre(7));
  EXPECT_THAT(parse_text("\n\n 7\t\r\n\r\n  \n12 \r\n"), ElementsAre(7, 12));
  EXPECT_THAT(parse_text("\xef\xbb\xbf"
                         "5\n"),
              ElementsAre(5));
  EXPECT_THAT(parse_text(std::to_string(kMaxTokens)), ElementsAre(kMaxTokens));
}

TEST(LengthsText, NamesTheLineThatIsNoLength) {
  EXPECT_EQ(text_message("7\n\nx\n"),
            fmt::format("f: line 3: expected a length of {}, found 'x'", kLength));
  EXPECT_EQ(text_message("7\n0\n"),
            fmt::format("f: line 2: expected a length of {}, found 0", kLength));
  EXPECT_THAT(text_message("-5"), HasSubstr("line 1: "));
  for (const char* line : {"1 2", "1,", "1.0", "1e3", "+1", "0x10", "4294967297",
                           "99999999999999999999", "1\v", "\"1\""}) {
    SCOPED_TRACE(line);
    EXPECT_THAT(text_message(std::string("1\n") + line), HasSubstr("f: line 2: expected a length"));
  }
}

TEST(LengthsText, WantsAtLeastOneLength) {
  for (const char* text : {"", "\n", " \r\n\t", "\xef\xbb\xbf", "[]", " [ ] "}) {
    EXPECT_THAT(text_message(text), HasSubstr("f: expected at least one length"));
  }
}

// ---------------------------------------------------------------------------------------- JSON

TEST(LengthsJson, ReadsAnArray) {
  EXPECT_THAT(parse_text("[7, 12,\n 3]\n"), ElementsAre(7, 12, 3));
  EXPECT_THAT(parse_text("\n [1]"), ElementsAre(1));
}

TEST(LengthsJson, NamesTheIndexThatIsNoLength) {
  EXPECT_EQ(text_message("[7, 0]"),
            fmt::format("f: index 1: expected a length of {}, found 0", kLength));
  for (const char* item : {"-1", "1.0", "1e3", "null", "true", "\"7\"", "[7]", "{\"length\": 7}",
                           "4294967297", "18446744073709551615", "18446744073709551616"}) {
    SCOPED_TRACE(item);
    EXPECT_THAT(text_message(fmt::format("[7, {}]", item)),
                HasSubstr("f: index 1: expected a length"));
  }
}

TEST(LengthsJson, RefusesWhatIsNoJson) {
  for (const char* text :
       {"[", "[7", "[7,", "[7,]", "[7] 8", "[7]]", "[NaN]", "[1e999]", "[7 8]"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(text_message(text), HasSubstr("f: expected a JSON array of lengths: "));
  }
  EXPECT_THAT(text_message(std::string(1'000'000, '[')), HasSubstr("index 0"));
}

TEST(LengthsJsonl, ReadsTheFieldOfEveryLine) {
  EXPECT_THAT(parse_text("{\"length\": 7}\n\n{\"text\": \"a\", \"length\": 12}\r\n"),
              ElementsAre(7, 12));
  EXPECT_THAT(parse_lengths_text("{\"n\": 3, \"length\": \"x\"}", "n", "f"), ElementsAre(3));
  EXPECT_THAT(parse_text(R"({"meta": {"length": 1, "a": [{"length": 2}]}, "length": 5, "z": [1]})"),
              ElementsAre(5));
}

TEST(LengthsJsonl, NamesTheLineWithoutAProperField) {
  const auto second = [](const std::string& line) {
    return text_message("{\"length\": 7}\n" + line);
  };
  EXPECT_EQ(second("{\"len\": 7}"),
            "f: line 2: expected a length in 'length', found no such field");
  EXPECT_EQ(
      second("{\"length\": \"7\"}"),
      fmt::format("f: line 2: expected a length of {} in 'length', found the text '7'", kLength));
  for (const char* value : {"0", "-7", "7.5", "null", "[7]", "{}", "true", "1e10", "4294967297"}) {
    SCOPED_TRACE(value);
    EXPECT_THAT(second(fmt::format("{{\"length\": {}}}", value)),
                AllOf(HasSubstr("f: line 2: "), HasSubstr("expected a length of 1 to")));
  }
  EXPECT_THAT(second("{\"a\": {\"length\": 7}}"), HasSubstr("no such field"));
  EXPECT_THAT(second("{\"length\": 7, \"length\": 7}"), HasSubstr("twice"));
  EXPECT_THAT(second("7"), HasSubstr("line 2: expected an object, found a number"));
  EXPECT_THAT(second("[7]"), HasSubstr("line 2: expected an object, found an array"));
  EXPECT_THAT(second("{\"length\": 7"), HasSubstr("line 2: expected a JSON object"));
  EXPECT_THAT(second("{\"length\": 7} 8"), HasSubstr("line 2: expected a JSON object"));
}

TEST(LengthsJsonl, TakesAnyDepthOfWhatItSkips) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(parse_text(fmt::format("{{\"x\": {}, \"length\": 7}}", deep)), ElementsAre(7));
}

// ----------------------------------------------------------------------------------------- npy

TEST(LengthsNpy, ReadsEveryIntegerTypeInEveryVersion) {
  for (int major = 1; major <= 3; ++major) {
    SCOPED_TRACE(major);
    EXPECT_THAT(parse_lengths_npy(npy<std::int64_t>("<i8", {7, kMaxTokens}, major), "f"),
                ElementsAre(7, kMaxTokens));
    EXPECT_THAT(parse_lengths_npy(npy<std::int32_t>("<i4", {7, 2147483647}, major), "f"),
                ElementsAre(7, 2147483647));
    EXPECT_THAT(parse_lengths_npy(npy<std::int16_t>("<i2", {7, 32767}, major), "f"),
                ElementsAre(7, 32767));
    EXPECT_THAT(parse_lengths_npy(npy<std::int8_t>("|i1", {7, 127}, major), "f"),
                ElementsAre(7, 127));
    EXPECT_THAT(
        parse_lengths_npy(npy<std::uint64_t>("<u8", {7, std::uint64_t{kMaxTokens}}, major), "f"),
        ElementsAre(7, kMaxTokens));
    EXPECT_THAT(parse_lengths_npy(npy<std::uint32_t>("<u4", {7, 2147483647U}, major), "f"),
                ElementsAre(7, 2147483647));
    EXPECT_THAT(parse_lengths_npy(npy<std::uint16_t>("<u2", {7, 65535}, major), "f"),
                ElementsAre(7, 65535));
    EXPECT_THAT(parse_lengths_npy(npy<std::uint8_t>("|u1", {7, 255}, major), "f"),
                ElementsAre(7, 255));
  }
}

Bytes one_i4(const std::string& header) {
  Bytes bytes = npy_with_header(header);
  append_number(bytes, std::int32_t{5});
  return bytes;
}

TEST(LengthsNpy, ReadsTheHeaderInAnyOrderAndSpacing) {
  for (const char* header :
       {"{'descr':'<i4','fortran_order':True,'shape':(1,)}",
        "{ \"shape\" : ( 1 , ) , \"descr\" : \"<i4\" , \"fortran_order\" : False , }   \n",
        "{'fortran_order': False, 'shape': (1L,), 'descr': '<i4'}"}) {
    SCOPED_TRACE(header);
    EXPECT_THAT(parse_lengths_npy(one_i4(header), "f"), ElementsAre(5));
  }
}

TEST(LengthsNpy, SaysWhatAnArrayIsInstead) {
  const auto header = [](const std::string& descr, const std::string& shape) {
    return npy_message(
        one_i4("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + "}"));
  };
  EXPECT_THAT(header("'<f4'", "(1,)"), HasSubstr("little-endian integer type"));
  EXPECT_THAT(header("'<f4'", "(1,)"), HasSubstr("found '<f4'"));
  EXPECT_THAT(header("'>i4'", "(1,)"), HasSubstr("found '>i4'"));
  EXPECT_THAT(header("'|b1'", "(4,)"), HasSubstr("found '|b1'"));
  EXPECT_THAT(header("[('a', '<i4')]", "(1,)"), HasSubstr("one element type"));
  EXPECT_THAT(header("'<i4'", "(1, 1)"), HasSubstr("expected 1 dimension, found 2"));
  EXPECT_THAT(header("'<i4'", "()"), HasSubstr("expected 1 dimension, found 0"));
  EXPECT_THAT(header("'<i4'", "(0,)"), HasSubstr("at least one length"));
  EXPECT_THAT(header("'<i4'", "(2,)"), HasSubstr("expected 2 elements of 4 bytes"));
  EXPECT_THAT(header("'<i2'", "(1,)"), HasSubstr("found 4 bytes"));
  EXPECT_THAT(header("'<i4'", "(4611686018427387905,)"), HasSubstr("elements of 4 bytes"));
  EXPECT_THAT(header("'<i4'", "(18446744073709551616,)"), HasSubstr("64-bit integer"));
  EXPECT_THAT(header("'<i4'", "(-1,)"), HasSubstr("64-bit integer"));
  EXPECT_THAT(header("'<i4'", "1"), HasSubstr("expected '('"));
}

TEST(LengthsNpy, RefusesBrokenHeaders) {
  for (const char* header :
       {"", "{", "{}", "{'descr': '<i4'}", "{'descr': '<i4', 'fortran_order': False}",
        "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i4', 'fortran_order': Maybe, 'shape': (1,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<i4, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
        "{'descr': '<i4' 'fortran_order': False, 'shape': (1,)}"}) {
    SCOPED_TRACE(header);
    EXPECT_THAT(npy_message(one_i4(header)), HasSubstr("f: .npy header: expected"));
  }
  Bytes version = npy<std::int32_t>("<i4", {5});
  version[6] = 4;
  EXPECT_THAT(npy_message(version), HasSubstr("found 4.0"));
}

TEST(LengthsNpy, NamesTheIndexThatIsNoLength) {
  EXPECT_EQ(npy_message(npy<std::int64_t>("<i8", {7, 0})),
            fmt::format("f: index 1: expected a length of {}, found 0", kLength));
  EXPECT_THAT(npy_message(npy<std::int32_t>("<i4", {-7})), HasSubstr("index 0: "));
  EXPECT_THAT(npy_message(npy<std::uint64_t>("<u8", {1, 1, ~0ULL})), HasSubstr("index 2: "));
}

// ----------------------------------------------------------------------------------------- idx

TEST(LengthsIdx, ReadsTheSequenceLengths) {
  EXPECT_THAT(parse_lengths_idx(idx({7, 2147483647, 1}), "f"), ElementsAre(7, 2147483647, 1));
  EXPECT_THAT(parse_lengths_idx(idx({7, 12, 3}, true), "f"), ElementsAre(7, 12, 3));
}

TEST(LengthsIdx, RefusesForeignFiles) {
  EXPECT_THAT(idx_message({}), HasSubstr("f: expected a Megatron-LM .idx file"));
  Bytes cached;
  append(cached, std::string_view("TNTIDX\0\0", 8));
  EXPECT_THAT(idx_message(cached), HasSubstr("found 'TNTIDX\\x00\\x00'"));
  Bytes version = idx({7});
  version[9] = 2;
  EXPECT_THAT(idx_message(version), HasSubstr("expected .idx version 1 at byte 9, found 2"));
  Bytes dtype = idx({7});
  dtype[17] = 9;
  EXPECT_THAT(idx_message(dtype), HasSubstr("at byte 17, found 9"));
  dtype[17] = 0;
  EXPECT_THAT(idx_message(dtype), HasSubstr("at byte 17, found 0"));
}

TEST(LengthsIdx, ChecksCountsBeforeItAllocates) {
  for (const std::size_t at : {18, 26}) {
    for (const std::uint64_t count : {~0ULL, 1ULL << 63, 1ULL << 61, 1ULL << 32}) {
      Bytes bytes = idx({7, 12});
      std::memcpy(bytes.data() + at, &count, sizeof(count));
      EXPECT_THAT(idx_message(bytes),
                  AllOf(HasSubstr(std::to_string(count)), HasSubstr("truncated")));
    }
  }
  EXPECT_THAT(idx_message(idx({})), HasSubstr("at least one sequence"));
  Bytes trailing = idx({7, 12});
  trailing.push_back(0);
  EXPECT_THAT(idx_message(trailing), HasSubstr("expected the end of the file"));
}

TEST(LengthsIdx, NamesTheIndexThatIsNoLength) {
  EXPECT_EQ(idx_message(idx({7, 0})),
            fmt::format("f: index 1: expected a length of {}, found 0", kLength));
  EXPECT_THAT(idx_message(idx({-1})), HasSubstr("index 0: "));
}

// ------------------------------------------------------------------------------- broken inputs

void expect_all_positive(const Lengths& lengths) {
  ASSERT_FALSE(lengths.empty());
  for (const std::int64_t length : lengths) ASSERT_GT(length, 0);
}

// Parses the bytes; whatever happens must be positive lengths or an InvalidArgument.
template <typename Parse>
bool survives(const Bytes& bytes, Parse parse) {
  try {
    expect_all_positive(parse(bytes));
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

TEST(BrokenLengths, BinaryFilesCutAnywhereAreRefused) {
  const auto parse_npy = [](const Bytes& b) { return parse_lengths_npy(b, "f"); };
  const auto parse_idx = [](const Bytes& b) { return parse_lengths_idx(b, "f"); };
  const Bytes whole_npy = npy<std::int64_t>("<i8", {7, 12, 3}, 2);
  const Bytes whole_idx = idx({7, 12, 3});
  for (std::size_t size = 0; size < whole_npy.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_FALSE(
        survives(Bytes(whole_npy.begin(), whole_npy.begin() + static_cast<long>(size)), parse_npy));
  }
  for (std::size_t size = 0; size < whole_idx.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_FALSE(
        survives(Bytes(whole_idx.begin(), whole_idx.begin() + static_cast<long>(size)), parse_idx));
  }
  EXPECT_TRUE(survives(whole_npy, parse_npy));
  EXPECT_TRUE(survives(whole_idx, parse_idx));
}

TEST(BrokenLengths, EverySingleByteChangeIsRefusedOrGivesLengths) {
  const Bytes whole_npy = npy<std::int32_t>("<i4", {7, 12, 3});
  const Bytes whole_idx = idx({7, 12, 3}, true);
  Bytes whole_json;
  append(whole_json, "[7, 12, 3]");
  Bytes whole_jsonl;
  append(whole_jsonl, "{\"length\": 7, \"a\": [1]}\n{\"length\": 12}\n");
  const auto parse_bytes = [](const Bytes& b) {
    return parse_lengths_text({reinterpret_cast<const char*>(b.data()), b.size()}, "length", "f");
  };
  const auto sweep = [](Bytes bytes, auto parse) {
    int refused = 0;
    for (std::uint8_t& byte : bytes) {
      const std::uint8_t original = byte;
      for (int value = 0; value < 256; ++value) {
        byte = static_cast<std::uint8_t>(value);
        refused += survives(bytes, parse) ? 0 : 1;
      }
      byte = original;
    }
    return refused;
  };
  EXPECT_GT(sweep(whole_npy, [](const Bytes& b) { return parse_lengths_npy(b, "f"); }), 0);
  EXPECT_GT(sweep(whole_idx, [](const Bytes& b) { return parse_lengths_idx(b, "f"); }), 0);
  EXPECT_GT(sweep(whole_json, parse_bytes), 0);
  EXPECT_GT(sweep(whole_jsonl, parse_bytes), 0);
}

TEST(BrokenLengths, RandomTextIsRefusedOrGivesLengths) {
  const std::string alphabet = "[]{}\",:0123456789.-e \n\rlengthnull\xff";
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::string text;
    for (std::size_t i = random() % 24; i > 0; --i) text += alphabet[random() % alphabet.size()];
    try {
      expect_all_positive(parse_text(text));
    } catch (const InvalidArgument&) {
    }
  }
}

// --------------------------------------------------------------------------------------- files

class LengthFiles : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "contextile_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    for (const std::string& path : paths_) ::unlink(path.c_str());
    ::rmdir(directory_.c_str());
  }
  std::string write(const std::string& name, const Bytes& bytes) {
    paths_.push_back(directory_ + "/" + name);
    std::ofstream(paths_.back(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return paths_.back();
  }
  std::string write_text(const std::string& name, std::string_view text) {
    return write(name, Bytes(text.begin(), text.end()));
  }

 private:
  std::string directory_;
  std::vector<std::string> paths_;
};

TEST_F(LengthFiles, AreReadByExtensionOrContent) {
  const Lengths expected = {7, 12, 3};
  const Bytes npy_bytes = npy<std::int64_t>("<i8", {7, 12, 3});
  EXPECT_EQ(read_lengths(write_text("a.txt", "7\n12\n3\n")), expected);
  EXPECT_EQ(read_lengths(write_text("a", "[7, 12, 3]")), expected);
  EXPECT_EQ(read_lengths(write_text("a.json", "[7, 12, 3]")), expected);
  EXPECT_EQ(read_lengths(write_text("a.jsonl", "{\"n\":7}\n{\"n\":12}\n{\"n\":3}"), "n"), expected);
  EXPECT_EQ(read_lengths(write("a.npy", npy_bytes)), expected);
  EXPECT_EQ(read_lengths(write("a.bin", npy_bytes)), expected);
  EXPECT_EQ(read_lengths(write("a.idx", idx({7, 12, 3}))), expected);
  EXPECT_EQ(read_lengths(write("b.dat", idx({7, 12, 3}))), expected);
}

TEST_F(LengthFiles, AreNamedInErrors) {
  const std::string path = write_text("a.npy", "7\n");
  EXPECT_THAT(message_of([&] { return read_lengths(path); }),
              HasSubstr(path + ": expected a .npy"));
  const std::string empty = write_text("a.idx", "");
  EXPECT_THAT(message_of([&] { return read_lengths(empty); }), HasSubstr(empty + ": expected"));
}

TEST_F(LengthFiles, ThatCannotBeReadSayWhy) {
  try {
    static_cast<void>(read_lengths("/no/such/file.txt"));
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "/no/such/file.txt: cannot read: No such file or directory");
  }
  EXPECT_THROW(static_cast<void>(read_lengths("/")), IoError);
}

TEST_F(LengthFiles, ManySequencesOfAnIdxAreReadQuickly) {
  const std::vector<std::int32_t> lengths(1'000'000, 17);
  const Lengths read = read_lengths(write("big.idx", idx(lengths)));
  EXPECT_EQ(read, Lengths(lengths.begin(), lengths.end()));
}

}  // namespace
}  // namespace contextile
