#include "training/setup/shell_words.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace contextile {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class WordSplitter {
 public:
  explicit WordSplitter(std::string_view text) : text_(text) {}

  std::vector<ShellWord> split() {
    while (at_ < text_.size()) step();
    end_word();
    return std::move(words_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (is_blank(c)) {
      end_word();
      ++at_;
    } else if (c == '#' && !in_word_) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '\'') {
      single_quotes();
    } else if (c == '"') {
      double_quotes();
    } else if (c == '\\') {
      escape();
    } else if (c == '$') {
      variable();
    } else if (std::string_view("|;&<>()`").find(c) != std::string_view::npos) {
      fail_argument("command: expected one command without shell operators, found '{}' at byte {}",
                    c, at_);
    } else {
      take();
    }
  }

  void take() {
    in_word_ = true;
    word_.text += text_[at_++];
  }
  void end_word() {
    if (in_word_) words_.push_back(std::move(word_));
    word_ = {};
    in_word_ = false;
  }

  void single_quotes() {
    const std::size_t end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos) fail_quote();
    in_word_ = true;
    word_.text += text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
  }

  void double_quotes() {
    in_word_ = true;
    open_ = at_++;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_];
      if (c == '\\') {
        escape_in_quotes();
      } else if (c == '$') {
        variable();
      } else if (c == '`') {
        fail_substitution(at_);
      } else {
        take();
      }
    }
    if (at_ == text_.size()) {
      at_ = open_;
      fail_quote();
    }
    ++at_;
  }

  // A backslash at the end of a line joins it with the next one.
  void escape() {
    ++at_;
    if (text_.substr(at_).starts_with("\r\n")) ++at_;
    if (at_ == text_.size()) return;
    if (text_[at_] == '\n') {
      ++at_;
      return;
    }
    take();
  }
  void escape_in_quotes() {
    const char next = at_ + 1 < text_.size() ? text_[at_ + 1] : ' ';
    if (next == '\n') {
      at_ += 2;
      return;
    }
    if (std::string_view("\"\\$`").find(next) != std::string_view::npos) ++at_;
    take();
  }

  void variable() {
    const std::size_t begin = at_++;
    const char next = at_ < text_.size() ? text_[at_] : ' ';
    if (next == '(') fail_substitution(begin);
    if (next == '{') {
      at_ = text_.find('}', at_);
      if (at_ == std::string_view::npos) {
        fail_argument("command: expected a closing brace of the variable at byte {}, found none",
                      begin);
      }
      ++at_;
    } else if (next == '@' || next == '*') {
      ++at_;
    } else {
      while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    }
    const std::string_view found = text_.substr(begin, at_ - begin);
    in_word_ = true;
    word_.text += found;
    if (found.size() > 1 && word_.variable.empty()) word_.variable = found;
  }

  [[noreturn]] void fail_quote() const {
    fail_argument("command: expected a closing quote of the text at byte {}, found none", at_);
  }
  [[noreturn]] static void fail_substitution(std::size_t at) {
    fail_argument("command: expected values, found a command substitution at byte {}", at);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t open_ = 0;
  std::vector<ShellWord> words_;
  ShellWord word_;
  bool in_word_ = false;
};

}  // namespace

std::vector<ShellWord> shell_words(std::string_view text) { return WordSplitter(text).split(); }

}  // namespace contextile
