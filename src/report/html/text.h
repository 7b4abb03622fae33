// Text and numbers on a page. Names that users gave (files, masks, clusters, options) never become
// markup or script.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace contextile {

using ReportJson = nlohmann::ordered_json;

// For element content and quoted attributes: & < > " ' as references; bytes that are no UTF-8 and
// control characters as U+FFFD.
[[nodiscard]] std::string html_text(std::string_view text);

// For the content of a <script>: no <, >, & or line separator stays as it is, so that neither
// </script> nor <!-- can occur. Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string script_json(const ReportJson& json);

// Whole numbers in groups of three, "131,072"; four significant digits of others.
[[nodiscard]] std::string grouped(std::int64_t number);
[[nodiscard]] std::string four_digits(double number);
// "1.234 GB", in powers of 1000.
[[nodiscard]] std::string bytes_text(double bytes);
// "12.3 ms", from µs to s.
[[nodiscard]] std::string time_text(double us);
// "12.3 TFLOP".
[[nodiscard]] std::string flops_text(double flops);
[[nodiscard]] std::string percent_text(double fraction);
// "1 mask", "2 masks", "2 batches".
[[nodiscard]] std::string counted(std::int64_t number, std::string_view noun);

// A number as a reader sees it and as it is: <data value="…">text</data>.
[[nodiscard]] std::string data_html(std::int64_t value, std::string_view text);
[[nodiscard]] std::string data_html(double value, std::string_view text);

// A double in JSON with six significant digits.
[[nodiscard]] double six_digits(double value);

}  // namespace contextile
