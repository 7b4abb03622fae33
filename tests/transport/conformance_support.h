// Helpers that the conformance cases of transports use.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/transport.h"
#include "transport/conformance.h"

namespace contextile {

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw ConformanceFailure(fmt::format(format, std::forward<Args>(args)...));
}

// Returns the text of the error of type E that the call ends in.
template <typename E, typename Call>
std::string error_of(std::string_view what, const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  throw ConformanceFailure(fmt::format("{}: expected an error, nothing was thrown", what));
}

inline void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    expect(text.find(part) != std::string::npos, "expected an error with '{}', found '{}'", part,
           text);
  }
}

inline Segment whole(std::vector<std::byte>& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  return {bytes.data(), size, 1, size};
}

template <typename T>
Segment whole_value(T& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof(T), 1, sizeof(T)};
}

inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next() & 0xff);
  return bytes;
}

inline std::vector<Message> one(Rank peer, Segment segment) { return {Message{peer, {segment}}}; }

// Returns every rank's value, by rank.
template <typename T>
std::vector<T> gather_values(Transport& transport, const T& mine) {
  std::vector<T> values;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&mine, 1)))) {
    T value{};
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(&value));
    values.push_back(value);
  }
  return values;
}

// Starts nothing and still notices that the group has failed. Returns the text of the error.
inline std::string hear_of_failure(Transport& transport) {
  return error_of<TransportError>("a rank of a failed group", [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      transport.wait(transport.launch({}, {}));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

// The cases of each file.
[[nodiscard]] std::vector<ConformanceCase> traffic_cases();
[[nodiscard]] std::vector<ConformanceCase> failure_cases();

}  // namespace contextile
