#include "store/value_file.h"

#include <algorithm>

#include "base/check.h"
#include "base/little_endian.h"
#include "base/quote.h"
#include "contextile/advanced/store.h"

namespace contextile {
namespace {

constexpr std::string_view kMagic = "CTXVALUE";
constexpr std::size_t kEndAt = 8;
constexpr std::size_t kValueBytesAt = 16;

}  // namespace

std::array<std::uint8_t, ValueHeader::kBytes> encode_value_header(const ValueHeader& header) {
  std::array<std::uint8_t, ValueHeader::kBytes> bytes{};
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  put(bytes, kEndAt, static_cast<std::uint64_t>(header.end_ms));
  put(bytes, kValueBytesAt, header.value_bytes);
  return bytes;
}

ValueHeader decode_value_header(std::span<const std::uint8_t> first, std::uint64_t file_bytes,
                                std::string_view file) {
  if (first.size() < ValueHeader::kBytes ||
      !std::equal(kMagic.begin(), kMagic.end(), first.begin())) {
    const std::string_view found(reinterpret_cast<const char*>(first.data()),
                                 std::min(first.size(), kMagic.size()));
    fail_io(
        "{}: expected a value of a store, which begins with {} and has at least {} bytes, found "
        "{} and {} bytes",
        file, quote(kMagic), ValueHeader::kBytes, quote(found), file_bytes);
  }
  ValueHeader header;
  header.end_ms = static_cast<std::int64_t>(get(first, kEndAt));
  header.value_bytes = get(first, kValueBytesAt);
  if (header.value_bytes > kMaxStoreValueBytes ||
      header.value_bytes != file_bytes - ValueHeader::kBytes) {
    fail_io(
        "{}: expected a value of {} bytes (of the file) and at most {}, found {} (of its header)",
        file, file_bytes - ValueHeader::kBytes, kMaxStoreValueBytes, header.value_bytes);
  }
  return header;
}

}  // namespace contextile
