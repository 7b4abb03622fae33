// Settings of an engine, read by name. A setting that no reader names is refused at the
// end unless a table says that it affects neither time nor memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/engine_setup.h"

namespace contextile {

struct GivenSetting {
  std::string key;            // as given, for messages
  std::string name;           // the key by which it is asked for
  std::string value;          // empty: a flag without value
  std::string variable = {};  // the first shell variable in the value
};

// A setting that is predicted as something else, with the reason. Names are patterns as below.
struct ApproximatedName {
  std::string_view name;
  std::string_view note;
};

struct SettingTables {
  std::span<const ApproximatedName> approximated;
  // Names without effect. "lr*" covers all names that begin with "lr", "*-path" all that end so.
  std::span<const std::string_view> without_effect;
};

class SettingReader {
 public:
  // `what` names the engine in messages.
  SettingReader(std::string_view what, std::vector<GivenSetting> settings);

  // All of these mark the setting as understood. Those that return nothing found none. They throw
  // InvalidArgument where the value is no such thing, or the setting is given twice with unlike
  // values.
  [[nodiscard]] std::optional<std::string> text(std::string_view name);
  [[nodiscard]] std::optional<std::int32_t> count(std::string_view name, std::int32_t least = 1);
  [[nodiscard]] bool flag(std::string_view name);  // false: absent or false
  [[nodiscard]] std::optional<bool> given_flag(std::string_view name);
  [[nodiscard]] bool any(std::string_view name);  // whatever the value
  // One of the names.
  [[nodiscard]] std::optional<std::size_t> choice(std::string_view name,
                                                  std::initializer_list<std::string_view> names);
  // Blank-separated words.
  [[nodiscard]] std::optional<std::vector<std::string>> words(std::string_view name);
  // The key as given, for messages.
  [[nodiscard]] std::string key_of(std::string_view name) const;

  // Marks a setting, already read, as predicted otherwise.
  void approximate(std::string_view name, std::string_view note);
  // Throws InvalidArgument: "megatron: --seq-length: expected …, found '…'".
  [[noreturn]] void fail(std::string_view name, std::string_view expected) const;

  // Sorts all settings into the lists. Throws InvalidArgument on the first that nothing covers.
  void finish(const SettingTables& tables, ReadSetup& result);

 private:
  enum class State : std::uint8_t { kUnread, kUnderstood, kApproximated };
  struct Entry {
    GivenSetting setting;
    State state = State::kUnread;
    std::string note = {};
  };
  // The first of the entries of a name, after all are marked and compared.
  [[nodiscard]] const Entry* find(std::string_view name);
  [[noreturn]] void refuse(const Entry& entry, const SettingTables& tables) const;

  std::string what_;
  std::vector<Entry> entries_;
  std::map<std::string, std::vector<std::size_t>, std::less<>> by_name_;
  std::vector<std::string> asked_;
};

// a · b · c. Throws InvalidArgument beyond 64 bits; `what` is in front of the message.
[[nodiscard]] std::int64_t checked_product(std::initializer_list<std::int64_t> factors,
                                           std::string_view what);

// The same as SettingReader::count; nothing for "auto".
[[nodiscard]] std::optional<std::int32_t> count_unless_auto(SettingReader& reader,
                                                            std::string_view name);

// Keeps the number of GPUs that a setting gives. Throws InvalidArgument if another is known.
void set_gpus(const SettingReader& reader, std::string_view name,
              std::optional<std::int64_t> num_gpus, ReadSetup& result);

// ZeRO's stage: 0 replicates, 1 shards the optimizer, 2 counts as 1, 3 is FSDP.
void set_zero_stage(SettingReader& reader, std::string_view name, std::int32_t stage,
                    TrainingSetup& setup);

// Sets DP from the number of GPUs where the settings did not give it, and checks it where both are
// known.
void settle_replicas(std::string_view what, ReadSetup& result);

// `settings` are in the form that each reader's comment says.
void read_megatron(std::vector<GivenSetting> settings, ReadSetup& result);
void read_torchtitan(std::vector<GivenSetting> settings, ReadSetup& result);
void read_trl(std::vector<GivenSetting> settings, ReadSetup& result);
void read_deepspeed(std::vector<GivenSetting> settings, ReadSetup& result);

}  // namespace contextile
