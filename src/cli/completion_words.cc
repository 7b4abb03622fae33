#include "cli/completion_words.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>

#include "cli/options/types.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"

namespace contextile {
namespace {

// CompletionValues that begin with what was typed.
class Collector {
 public:
  Collector(CompletionValues& candidates, std::string typed)
      : candidates_(candidates), typed_(std::move(typed)) {}

  void offer(const std::string& word, std::string_view text) {
    if (word.starts_with(typed_)) candidates_.words.push_back({word, std::string(text)});
  }

 private:
  CompletionValues& candidates_;
  std::string typed_;
};

// "lambda:SINK,WINDOW" is offered as "lambda:"; the user types the rest.
std::string without_parameters(const std::string& word) {
  for (std::size_t i = 0; i + 1 < word.size(); ++i) {
    if (word[i] == ':' && std::isupper(static_cast<unsigned char>(word[i + 1])) != 0) {
      return word.substr(0, i + 1);
    }
  }
  return word;
}

// Keys of a strategy, or the values of the one that is being written ("partitioner=hy").
void offer_keys(const std::string& strategy, const std::string& typed, const std::string& head,
                Collector& collector) {
  for (const Strategy* known : strategies()) {
    if (known->name() != strategy) continue;
    for (const OptionSpec& option : known->options()) {
      const std::string key = option.name + '=';
      const std::string begin = head + key;
      if (!typed.starts_with(key)) {
        collector.offer(begin, option.help);
        continue;
      }
      for (const std::string& value : option.values) collector.offer(begin + value, "");
    }
  }
}

// "zigzag,magi:chunk=64,st": strategies, and options of the one that is being written.
void offer_strategies(const std::string& text, const std::string& head, Collector& collector) {
  const std::size_t comma = text.rfind(',');
  const std::size_t begin = comma == std::string::npos ? 0 : comma + 1;
  const std::string item = text.substr(begin);
  const std::string before = head + text.substr(0, begin);
  if (const std::size_t colon = item.find(':'); colon != std::string::npos) {
    offer_keys(item.substr(0, colon), item.substr(colon + 1), before + item.substr(0, colon + 1),
               collector);
    return;
  }
  for (const Strategy* strategy : strategies()) {
    collector.offer(before + std::string(strategy->name()), strategy->summary());
  }
  // Behind "name:key=value," another key of the same strategy may follow.
  const std::size_t colon = text.rfind(':', begin);
  if (colon == std::string::npos) return;
  const std::size_t name = text.rfind(',', colon);
  const std::size_t name_begin = name == std::string::npos ? 0 : name + 1;
  const std::string rest = text.substr(colon + 1, begin - colon - 1);
  // An item without '=' in between has started another strategy.
  for (std::size_t at = 0; at < rest.size();) {
    const std::size_t end = rest.find(',', at);
    if (rest.substr(at, end - at).find('=') == std::string::npos) return;
    at = end + 1;
  }
  offer_keys(text.substr(name_begin, colon - name_begin), item, before, collector);
}

// Values of an option, each behind `head` ("--mask=" or nothing).
void offer_values(const CLI::Option& option, const std::string& text, std::string head,
                  CompletionValues& candidates) {
  const ValueHints hints = value_hints(option);
  // Behind the ':' of "dgx-h200:4x8" or "lambda:64,1024" stands no file.
  const bool in_parameters = std::ranges::any_of(hints.words, [&](const std::string& word) {
    return text.starts_with(word.substr(0, word.find(':')) + ':');
  });
  candidates.files = candidates.files || (hints.file && !in_parameters);
  if (option.get_name() == "--strategy") {
    Collector collector(candidates, head + text);
    offer_strategies(text, head, collector);
    return;
  }
  Collector collector(candidates, head + text);
  if (option.get_option_text().starts_with("[NAME=]")) {
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) head += text.substr(0, equals + 1);
  }
  for (const std::string& word : hints.words) collector.offer(head + without_parameters(word), "");
}

// A command line up to the word that is being typed.
struct Written {
  const CLI::Option* awaiting = nullptr;  // the last word is this option's value
  std::vector<const CLI::Option*> given;
  std::size_t positionals = 0;
};

const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options()) {
    if (name.size() > 1 && option->check_name(name)) return option;
  }
  return nullptr;
}

Written read_words(const CLI::App& command, std::span<const std::string> words) {
  Written written;
  for (const std::string& word : words) {
    if (written.awaiting != nullptr) {
      written.awaiting = nullptr;
    } else if (!word.starts_with("-")) {
      ++written.positionals;
    } else {
      const std::size_t equals = word.find('=');
      const CLI::Option* option = find_option(command, word.substr(0, equals));
      if (option == nullptr) continue;
      written.given.push_back(option);
      const bool takes_value = option->get_items_expected_max() > 0;
      if (takes_value && equals == std::string::npos) written.awaiting = option;
    }
  }
  return written;
}

// Every option that may still be given, by its long name.
void offer_options(const CLI::App& command, const Written& written, Collector& collector) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) continue;
    const bool given = std::ranges::find(written.given, option) != written.given.end();
    if (given && !repeatable(*option)) continue;
    for (const std::string& name : option->get_lnames()) {
      collector.offer("--" + name, option->get_description());
    }
  }
}

const CLI::Option* positional(const CLI::App& command, std::size_t index) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() && index-- == 0) return option;
  }
  return nullptr;
}

void complete_argument(const CLI::App& command, std::span<const std::string> words,
                       CompletionValues& candidates) {
  const std::string& typed = words.back();
  const Written written = read_words(command, words.first(words.size() - 1));
  if (written.awaiting != nullptr) {
    offer_values(*written.awaiting, typed, "", candidates);
    return;
  }
  const std::size_t equals = typed.find('=');
  if (typed.starts_with("--") && equals != std::string::npos) {
    const CLI::Option* option = find_option(command, typed.substr(0, equals));
    if (option == nullptr) return;
    offer_values(*option, typed.substr(equals + 1), typed.substr(0, equals + 1), candidates);
    return;
  }
  Collector collector(candidates, typed);
  const CLI::Option* next = positional(command, written.positionals);
  if (!typed.starts_with("-") && next != nullptr) offer_values(*next, typed, "", candidates);
  if (typed.starts_with("-") || next == nullptr) offer_options(command, written, collector);
}

}  // namespace

CompletionValues candidates_for(const CLI::App& program, std::span<const std::string> words) {
  CompletionValues candidates;
  if (words.empty()) return candidates;
  if (words.size() == 1) {
    Collector collector(candidates, words.front());
    if (words.front().starts_with("-")) {
      offer_options(program, {}, collector);
      return candidates;
    }
    for (const CLI::App* command : program.get_subcommands({})) {
      collector.offer(command->get_name(), command->get_description());
    }
    return candidates;
  }
  for (const CLI::App* command : program.get_subcommands({})) {
    if (command->get_name() != words.front()) continue;
    complete_argument(*command, words.subspan(1), candidates);
  }
  return candidates;
}

std::string answer_text(const CompletionValues& candidates) {
  std::string text = candidates.files ? "files\n" : "words\n";
  for (const Candidate& candidate : candidates.words) {
    text += fmt::format("{}\t{}\n", candidate.word, candidate.text);
  }
  return text;
}

}  // namespace contextile
