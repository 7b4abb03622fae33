#include "report/report_support.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {

Reported::Reported(const PlanChoice& choice) : name(choice.name) {
  std::vector<MaskUse> masks;
  for (const std::string& mask : choice.masks) masks.push_back(parse_mask_use(mask));
  const AttentionShape shape{.q_heads = 8, .kv_heads = 4, .head_dim = 64, .value_dim = 64};
  const Workload workload = make_workload(choice.lengths, shape, masks);
  cluster.name = "test";
  cluster.nodes = choice.nodes;
  cluster.devices_per_node = choice.devices;
  StrategyRequest request;
  if (choice.forward_only) request.backward = false;
  plan = build_plan(workload, cluster,
                    find_strategy(choice.strategy).arrange(workload, cluster, request));
  finish();
}

Reported::Reported(Plan made, const Cluster& on) : cluster(on), plan(std::move(made)) { finish(); }

void Reported::finish() {
  verified = verify(plan);
  simulation = simulate(plan, cluster, {.timeline = true});
}

std::string page_of(const std::vector<const Reported*>& reported, const ReportOptions& options) {
  std::vector<ReportedPlan> plans;
  for (const Reported* plan : reported) plans.push_back(plan->reported());
  std::ostringstream out;
  write_report(plans, out, options);
  return out.str();
}

namespace {

std::size_t end_of_tag(std::string_view page, std::size_t at) {
  char quote = 0;
  for (; at < page.size(); ++at) {
    const char c = page[at];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '>') {
      return at;
    } else if (c == '<') {
      break;
    } else if (c == '"') {
      if (page[at - 1] != '=') break;  // a quote that begins no value
      quote = c;
    }
  }
  return std::string_view::npos;
}

}  // namespace

std::string unbalanced_tags(std::string_view page) {
  const std::set<std::string> voids = {"meta", "link", "br", "hr", "img", "input"};
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at < page.size(); at = page.find('<', at)) {
    const std::size_t end = end_of_tag(page, at + 1);
    if (end == std::string_view::npos) {
      return "tag without end: " + std::string(page.substr(at, 60));
    }
    const bool closes = page[at + 1] == '/';
    std::size_t name_end = at + (closes ? 2 : 1);
    const std::size_t name_begin = name_end;
    while (std::isalnum(static_cast<unsigned char>(page[name_end])) != 0) ++name_end;
    const std::string name(page.substr(name_begin, name_end - name_begin));
    at = end + 1;
    const bool image = !open.empty() && open.front() == "svg";
    if (image && page[end - 1] == '/') continue;  // XML: an element without content
    if (closes) {
      if (open.empty() || open.back() != name) {
        return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
      }
      open.pop_back();
    } else if (!name.empty() && !voids.contains(name)) {
      open.push_back(name);
      if (name == "script" || name == "style") {
        at = page.find("</" + name, at);
      }
    } else if (name.empty() && !page.substr(name_begin).starts_with("!DOCTYPE html>")) {
      return "no tag: " + std::string(page.substr(name_begin, 60));
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

nlohmann::json data_of(std::string_view page) {
  const std::string_view begin = "<script type=\"application/json\" id=\"report-data\">";
  const std::size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

std::vector<double> row_values(const std::string& page, const std::string& section,
                               const std::string& row) {
  const std::size_t from = page.find("<section id=\"" + section + "\">");
  const std::size_t begin = page.find("<th scope=\"row\">" + row + "</th>", from);
  const std::string cells = page.substr(begin, page.find("</tr>", begin) - begin);
  std::vector<double> values;
  const std::regex value("<data value=\"([^\"]*)\">");
  for (auto it = std::sregex_iterator(cells.begin(), cells.end(), value);
       it != std::sregex_iterator(); ++it) {
    values.push_back(std::stod((*it)[1].str()));
  }
  return values;
}

PackedReader::PackedReader(const std::string& base64) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : base64) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes_.push_back(static_cast<std::uint8_t>(bits >> held));
  }
}

std::int64_t PackedReader::next() {
  std::int64_t value = 0;
  for (int shift = 0;; shift += 7) {
    if (done()) throw std::out_of_range("packed numbers end too early");
    const std::int64_t byte = bytes_[at_++];
    value |= (byte & 127) << shift;
    if (byte < 128) return value;
  }
}

std::int64_t PackedReader::next_signed() {
  const std::int64_t value = next();
  return value % 2 != 0 ? -(value / 2) - 1 : value / 2;
}

}  // namespace contextile
