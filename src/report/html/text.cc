#include "report/html/text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace contextile {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// JSON's writer replaces what is no UTF-8.
std::string dump(const ReportJson& json) {
  return json.dump(-1, ' ', false, ReportJson::error_handler_t::replace);
}

std::string in_units(double value, double step, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && std::abs(value) >= 0.99995 * step) {
    value /= step;
    ++unit;
  }
  return fmt::format("{} {}", four_digits(value), units[unit]);
}

}  // namespace

std::string html_text(std::string_view text) {
  const std::string valid = ReportJson::parse(dump(ReportJson(text))).get<std::string>();
  std::string html;
  for (const char c : valid) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      html += "&amp;";
    } else if (c == '<') {
      html += "&lt;";
    } else if (c == '>') {
      html += "&gt;";
    } else if (c == '"') {
      html += "&quot;";
    } else if (c == '\'') {
      html += "&#39;";
    } else if (byte < 0x20 || byte == 0x7f) {
      html += kReplacement;
    } else {
      html += c;
    }
  }
  return html;
}

std::string script_json(const ReportJson& json) {
  std::string safe;
  const std::string text = dump(json);
  safe.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::string_view rest = std::string_view(text).substr(i, 3);
    if (c == '<' || c == '>' || c == '&') {  // they occur in strings only
      safe += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (rest == "\xe2\x80\xa8" || rest == "\xe2\x80\xa9") {
      safe += rest.back() == '\xa8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string grouped(std::int64_t number) {
  const std::string digits = std::to_string(number);
  const std::size_t sign = number < 0 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string four_digits(double number) {
  if (number == 0) return "0";
  const double magnitude = std::abs(number);
  if (magnitude >= 999.95 && magnitude < 9e15) return grouped(std::llround(number));
  if (magnitude < 1e-4 || magnitude >= 9e15) return fmt::format("{:.3e}", number);
  const int decimals = 3 - static_cast<int>(std::floor(std::log10(magnitude) + 1e-12));
  return fmt::format("{:.{}f}", number, decimals < 0 ? 0 : decimals);
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  return in_units(bytes, 1000, kUnits);
}

std::string time_text(double us) {
  constexpr std::array kUnits = {"µs", "ms", "s"};
  return in_units(us, 1000, kUnits);
}

std::string flops_text(double flops) {
  constexpr std::array kUnits = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                 "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  return in_units(flops, 1000, kUnits);
}

std::string percent_text(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

std::string counted(std::int64_t number, std::string_view noun) {
  const std::string_view plural = number == 1 ? "" : noun.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", grouped(number), noun, plural);
}

std::string data_html(std::int64_t value, std::string_view text) {
  return fmt::format(R"(<data value="{}">{}</data>)", value, html_text(text));
}

std::string data_html(double value, std::string_view text) {
  return fmt::format(R"(<data value="{}">{}</data>)", value, html_text(text));
}

double six_digits(double value) {
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value,
                                     std::chars_format::scientific, 5);
  double rounded = value;
  std::from_chars(text.data(), written.ptr, rounded);
  return rounded;
}

}  // namespace contextile
