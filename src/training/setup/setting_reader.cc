#include "training/setup/setting_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"

namespace contextile {
namespace {

bool is_absent(std::string_view value) {
  return value == "null" || value == "None" || value == "~";
}

bool covers(std::string_view pattern, std::string_view name) {
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

SetupSetting listed(const GivenSetting& setting, std::string_view note) {
  return {.key = setting.key, .value = setting.value, .note = std::string(note)};
}

}  // namespace

SettingReader::SettingReader(std::string_view what, std::vector<GivenSetting> settings)
    : what_(what) {
  for (GivenSetting& setting : settings) {
    if (!is_absent(setting.value)) by_name_[setting.name].push_back(entries_.size());
    entries_.push_back({.setting = std::move(setting)});
  }
}

const SettingReader::Entry* SettingReader::find(std::string_view name) {
  asked_.emplace_back(name);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  const Entry& first = entries_[found->second.front()];
  for (const std::size_t index : found->second) {
    Entry& entry = entries_[index];
    if (!entry.setting.variable.empty()) {
      fail_argument("{}: {}: expected a value, found the variable {}; write its value", what_,
                    printable(entry.setting.key), printable(entry.setting.variable));
    }
    if (entry.setting.value != first.setting.value) {
      fail_argument("{}: {}: expected one value, found {} and {}", what_,
                    printable(entry.setting.key), quote(first.setting.value),
                    quote(entry.setting.value));
    }
    if (entry.state == State::kUnread) entry.state = State::kUnderstood;
  }
  return &first;
}

std::optional<std::string> SettingReader::text(std::string_view name) {
  const Entry* entry = find(name);
  if (entry == nullptr) return std::nullopt;
  if (entry->setting.value.empty()) fail(name, "a value");
  return entry->setting.value;
}

std::optional<std::int32_t> SettingReader::count(std::string_view name, std::int32_t least) {
  const Entry* entry = find(name);
  if (entry == nullptr) return std::nullopt;
  const std::string& text = entry->setting.value;
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    fail(name, fmt::format("a whole number from {} to {}", least,
                           std::numeric_limits<std::int32_t>::max()));
  }
  return value;
}

std::optional<bool> SettingReader::given_flag(std::string_view name) {
  const Entry* entry = find(name);
  if (entry == nullptr) return std::nullopt;
  const std::string& value = entry->setting.value;
  if (value.empty() || value == "true" || value == "True") return true;
  if (value == "false" || value == "False") return false;
  fail(name, "true or false");
}

bool SettingReader::flag(std::string_view name) { return given_flag(name).value_or(false); }

bool SettingReader::any(std::string_view name) { return find(name) != nullptr; }

std::optional<std::size_t> SettingReader::choice(std::string_view name,
                                                 std::initializer_list<std::string_view> names) {
  const Entry* entry = find(name);
  if (entry == nullptr) return std::nullopt;
  const auto* const found = std::find(names.begin(), names.end(), entry->setting.value);
  if (found == names.end()) fail(name, fmt::format("one of {}", fmt::join(names, ", ")));
  return static_cast<std::size_t>(found - names.begin());
}

std::optional<std::vector<std::string>> SettingReader::words(std::string_view name) {
  const std::optional<std::string> all = text(name);
  if (!all) return std::nullopt;
  std::vector<std::string> result;
  std::size_t begin = 0;
  while ((begin = all->find_first_not_of(" ,[]'\"", begin)) != std::string::npos) {
    const std::size_t end = std::min(all->find_first_of(" ,[]'\"", begin), all->size());
    result.push_back(all->substr(begin, end - begin));
    begin = end;
  }
  return result;
}

std::string SettingReader::key_of(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::string(name);
  return entries_[found->second.front()].setting.key;
}

void SettingReader::approximate(std::string_view name, std::string_view note) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  for (const std::size_t index : found->second) {
    entries_[index].state = State::kApproximated;
    entries_[index].note = note;
  }
}

void SettingReader::fail(std::string_view name, std::string_view expected) const {
  const auto found = by_name_.find(name);
  const std::string value =
      found == by_name_.end() ? "none" : quote(entries_[found->second.front()].setting.value);
  fail_argument("{}: {}: expected {}, found {}", what_, printable(key_of(name)), expected, value);
}

void SettingReader::refuse(const Entry& entry, const SettingTables& tables) const {
  std::vector<std::string> names = asked_;
  for (const ApproximatedName& known : tables.approximated) names.emplace_back(known.name);
  names.insert(names.end(), tables.without_effect.begin(), tables.without_effect.end());
  std::erase_if(names, [](const std::string& known) { return known.find('*') != known.npos; });
  // The search for a near name takes time with the length of the name.
  const std::string& name = entry.setting.name;
  const std::string suggestion = name.size() <= 80 ? did_you_mean(name, names) : "";
  fail_argument(
      "{}: {}: expected a setting that is understood, found one that may affect time or "
      "memory{}",
      what_, printable(entry.setting.key), suggestion);
}

void SettingReader::finish(const SettingTables& tables, ReadSetup& result) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const GivenSetting& setting = entries_[i].setting;
    if (entries_[i].state != State::kUnread || is_absent(setting.value)) continue;
    const auto known =
        std::find_if(tables.approximated.begin(), tables.approximated.end(),
                     [&](const ApproximatedName& name) { return covers(name.name, setting.name); });
    if (known == tables.approximated.end()) continue;
    const std::string name = setting.name;
    const bool off = setting.value == "false" || setting.value == "False";
    if (find(name) != nullptr && !off) approximate(name, known->note);
  }
  for (const Entry& entry : entries_) {
    const GivenSetting& setting = entry.setting;
    switch (entry.state) {
      case State::kUnderstood:
        result.understood.push_back(listed(setting, ""));
        continue;
      case State::kApproximated:
        result.approximated.push_back(listed(setting, entry.note));
        continue;
      case State::kUnread:
        break;
    }
    const bool without_effect =
        is_absent(setting.value) ||
        std::any_of(tables.without_effect.begin(), tables.without_effect.end(),
                    [&](std::string_view pattern) { return covers(pattern, setting.name); });
    if (!without_effect) refuse(entry, tables);
    result.without_effect.push_back(listed(setting, ""));
  }
}

std::int64_t checked_product(std::initializer_list<std::int64_t> factors, std::string_view what) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      fail_argument("{}: expected at most {}, found a product of {}", what,
                    std::numeric_limits<std::int64_t>::max(), fmt::join(factors, " x "));
    }
  }
  return product;
}

std::optional<std::int32_t> count_unless_auto(SettingReader& reader, std::string_view name) {
  if (!reader.any(name) || reader.text(name) == "auto") return std::nullopt;
  return reader.count(name);
}

void set_gpus(const SettingReader& reader, std::string_view name,
              std::optional<std::int64_t> num_gpus, ReadSetup& result) {
  if (!num_gpus) return;
  if (result.num_gpus && *result.num_gpus != *num_gpus) {
    reader.fail(name, fmt::format("{} GPUs", *result.num_gpus));
  }
  result.num_gpus = num_gpus;
}

void set_zero_stage(SettingReader& reader, std::string_view name, std::int32_t stage,
                    TrainingSetup& setup) {
  if (stage > 3) reader.fail(name, "0, 1, 2 or 3");
  setup.optimizer = stage == 0   ? OptimizerShards::kNone
                    : stage == 3 ? OptimizerShards::kFsdp
                                 : OptimizerShards::kZero1;
  if (stage == 2) {
    reader.approximate(name, "predicted as stage 1, with whole gradients on every rank");
  }
}

void settle_replicas(std::string_view what, ReadSetup& result) {
  if (!result.num_gpus) return;
  ParallelSizes& sizes = result.setup.sizes;
  const std::int64_t replica = checked_product({sizes.tp, sizes.cp, sizes.pp}, what);
  if (result.has("dp")) {
    const std::int64_t found = checked_product({replica, sizes.dp}, what);
    CONTEXTILE_CHECK(found == *result.num_gpus,
                     "{}: expected TP {} x CP {} x DP {} x PP {} to be {} GPUs, found {}", what,
                     sizes.tp, sizes.cp, sizes.dp, sizes.pp, *result.num_gpus, found);
    return;
  }
  CONTEXTILE_CHECK(*result.num_gpus % replica == 0,
                   "{}: expected a multiple of TP {} x CP {} x PP {} GPUs, found {}", what,
                   sizes.tp, sizes.cp, sizes.pp, *result.num_gpus);
  sizes.dp = checked_cast<std::int32_t>(*result.num_gpus / replica, "dp");
  result.given.emplace_back("dp");
}

}  // namespace contextile
