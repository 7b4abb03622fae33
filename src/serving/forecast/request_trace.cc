#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/parse_number.h"
#include "base/portable_math.h"
#include "base/quote.h"
#include "base/rng.h"
#include "serving/forecast/check_trace.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max() / 2;

double exponential(Rng& random, double mean) { return -mean * portable_log(1 - random.uniform()); }
// A random length of at least 1.
std::int64_t random_length(Rng& random, double mean) {
  const double length = std::ceil(exponential(random, mean));
  return static_cast<std::int64_t>(std::clamp(length, 1.0, static_cast<double>(kMostTokens)));
}

void check_spec(const TraceSpec& spec) {
  const auto check_above_0 = [](std::string_view what, double value) {
    CONTEXTILE_CHECK(std::isfinite(value) && value > 0,
                     "trace, {}: expected a number above 0, found {}", what, value);
  };
  CONTEXTILE_CHECK(spec.num_requests >= 1 && spec.num_prefixes >= 1,
                   "trace: expected at least 1 request and 1 prefix, found {} and {}",
                   spec.num_requests, spec.num_prefixes);
  check_above_0("requests a second", spec.requests_per_s);
  check_above_0("tokens of a prompt", spec.prompt_tokens);
  check_above_0("tokens of an output", spec.output_tokens);
  CONTEXTILE_CHECK(spec.shared >= 0 && spec.shared <= 1,
                   "trace, share of requests with a prefix: expected 0 to 1, found {}",
                   spec.shared);
  CONTEXTILE_CHECK(spec.prefix_tokens >= 0 && spec.prefix_tokens <= kMostTokens,
                   "trace, tokens of a prefix: expected 0 to {}, found {}", kMostTokens,
                   spec.prefix_tokens);
}

void set_value(TraceSpec& spec, std::string_view key, std::string_view value) {
  const std::string name = fmt::format("trace, {}", key);
  const auto whole = [&](std::int64_t minimum) { return parse_size(name, value, minimum); };
  if (key == "requests") {
    spec.num_requests = checked_cast<std::int32_t>(whole(1), name);
  } else if (key == "rate") {
    spec.requests_per_s = parse_number(name, value);
  } else if (key == "prompt") {
    spec.prompt_tokens = static_cast<double>(whole(1));
  } else if (key == "output") {
    spec.output_tokens = static_cast<double>(whole(1));
  } else if (key == "shared") {
    spec.shared = parse_number(name, value);
  } else if (key == "prefixes") {
    spec.num_prefixes = checked_cast<std::int32_t>(whole(1), name);
  } else if (key == "prefix") {
    spec.prefix_tokens = whole(0);
  } else if (key == "seed") {
    spec.seed = static_cast<std::uint64_t>(whole(0));
  } else {
    fail_argument(
        "trace: expected requests, rate, prompt, output, shared, prefixes, prefix or seed, found "
        "{}",
        quote(key));
  }
}

// Parses one line as a request.
class TraceLine {
 public:
  TraceLine(std::string_view line, std::string where)
      : where_(std::move(where)), object_(parse_json(line, where_)) {
    CONTEXTILE_CHECK(object_.is_object(), "{}: expected a JSON object, found {}", where_,
                     quote(line));
    for (const auto& [key, value] : object_.items()) {
      CONTEXTILE_CHECK(std::ranges::find(kKeys, key) != std::end(kKeys),
                       "{}: expected the keys {}, found {}", where_, fmt::join(kKeys, ", "),
                       quote(key));
    }
  }

  [[nodiscard]] TraceRequest request() const {
    TraceRequest request;
    const json& arrival = at("arrival_s");
    CONTEXTILE_CHECK(arrival.is_number(), "{}: arrival_s: expected seconds, found {}", where_,
                     arrival.dump());
    request.arrival_s = arrival.get<double>();
    request.prompt_tokens = whole("prompt_tokens");
    request.output_tokens = static_cast<std::int32_t>(whole("output_tokens"));
    CONTEXTILE_CHECK(object_.contains("prefix") == object_.contains("prefix_tokens"),
                     "{}: expected both prefix and prefix_tokens, found one", where_);
    if (object_.contains("prefix")) {
      request.prefix = static_cast<std::int32_t>(whole("prefix"));
      request.prefix_tokens = whole("prefix_tokens");
    }
    return request;
  }

 private:
  static constexpr std::string_view kKeys[] = {"arrival_s", "prompt_tokens", "output_tokens",
                                               "prefix", "prefix_tokens"};

  [[nodiscard]] const json& at(const std::string& key) const {
    CONTEXTILE_CHECK(object_.contains(key), "{}: expected the key {}, found none", where_, key);
    return object_.at(key);
  }
  [[nodiscard]] std::int64_t whole(const std::string& key) const {
    const json& value = at(key);
    const std::optional<std::int64_t> number = json_integer(value, 0, kMostTokens);
    CONTEXTILE_CHECK(number, "{}: {}: expected a whole number of 0 to {}, found {}", where_, key,
                     kMostTokens, value.dump());
    return *number;
  }

  std::string where_;
  json object_;
};

}  // namespace

void check_request(const TraceRequest& request, double earliest_s, std::string_view where) {
  CONTEXTILE_CHECK(std::isfinite(request.arrival_s) && request.arrival_s >= earliest_s,
                   "{}: arrival_s: expected at least {}, found {}", where, earliest_s,
                   request.arrival_s);
  CONTEXTILE_CHECK(request.prompt_tokens >= 1 && request.prompt_tokens <= kMostTokens,
                   "{}: prompt_tokens: expected 1 to {}, found {}", where, kMostTokens,
                   request.prompt_tokens);
  CONTEXTILE_CHECK(request.output_tokens >= 1 && request.output_tokens <= kMostTokens,
                   "{}: output_tokens: expected 1 to {}, found {}", where, kMostTokens,
                   request.output_tokens);
  CONTEXTILE_CHECK(request.prefix >= 0, "{}: prefix: expected at least 0, found {}", where,
                   request.prefix);
  CONTEXTILE_CHECK(request.prefix_tokens >= 0 && request.prefix_tokens <= request.prompt_tokens,
                   "{}: prefix_tokens: expected 0 to the prompt's {}, found {}", where,
                   request.prompt_tokens, request.prefix_tokens);
}

TraceSpec parse_trace_spec(std::string_view text) {
  constexpr std::string_view kName = "poisson";
  CONTEXTILE_CHECK(text == kName || text.starts_with("poisson:"),
                   "trace: expected poisson or poisson:NAME=NUMBER,..., found {}", quote(text));
  TraceSpec spec;
  std::string_view rest = text.substr(std::min(text.size(), kName.size() + 1));
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    const std::size_t middle = pair.find('=');
    CONTEXTILE_CHECK(middle != std::string_view::npos,
                     "trace: expected NAME=NUMBER behind poisson, found {}", quote(pair));
    set_value(spec, pair.substr(0, middle), pair.substr(middle + 1));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
  }
  check_spec(spec);
  return spec;
}

std::vector<TraceRequest> make_trace(const TraceSpec& spec) {
  check_spec(spec);
  Rng random(spec.seed);
  std::vector<TraceRequest> trace;
  double now_s = 0;
  for (std::int32_t i = 0; i < spec.num_requests; ++i) {
    TraceRequest request;
    now_s += exponential(random, 1 / spec.requests_per_s);
    request.arrival_s = now_s;
    request.prompt_tokens = random_length(random, spec.prompt_tokens);
    request.output_tokens = static_cast<std::int32_t>(random_length(random, spec.output_tokens));
    const bool is_shared = random.uniform() < spec.shared;
    const auto prefix = static_cast<std::int32_t>(random.uniform() * spec.num_prefixes);
    if (is_shared && spec.prefix_tokens > 0) {
      request.prefix = prefix;
      request.prefix_tokens = std::min(spec.prefix_tokens, kMostTokens - request.prompt_tokens);
      request.prompt_tokens += request.prefix_tokens;
    }
    trace.push_back(request);
  }
  return trace;
}

std::vector<TraceRequest> parse_trace(std::string_view text, std::string_view where) {
  std::vector<TraceRequest> trace;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(text.size(), length + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}, line {}", where, number);
    trace.push_back(TraceLine(line, place).request());
    check_request(trace.back(), trace.size() == 1 ? 0 : trace[trace.size() - 2].arrival_s, place);
  }
  CONTEXTILE_CHECK(!trace.empty(), "{}: expected requests as JSON lines, found none", where);
  return trace;
}

std::vector<TraceRequest> read_trace(const std::string& path) {
  const FileBytes file(path, expect_text("a trace as JSON lines"));
  return parse_trace(file.text(), file.name());
}

}  // namespace contextile
