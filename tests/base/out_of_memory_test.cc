#include "base/out_of_memory.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace contextile {
namespace {

// Throws like operator new without memory; a real request for too much would end a sanitizer's run.
int too_much() { throw std::bad_alloc(); }

std::string never() {
  ADD_FAILURE() << "asked for the subject";
  return "";
}

TEST(OutOfMemory, NamesWhatMemoryRanOutFor) {
  try {
    static_cast<void>(with_memory_for([] { return std::string("a list of 3 things"); }, too_much));
    FAIL() << "expected OutOfMemory";
  } catch (const std::bad_alloc& error) {
    EXPECT_STREQ(error.what(), "a list of 3 things");
  }
}

TEST(OutOfMemory, OfSeveralSubjectsTheInnermostSpeaks) {
  const auto outer = [] { return with_memory_for([] { return std::string("a list"); }, too_much); };
  try {
    static_cast<void>(with_memory_for(never, outer));
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(), "a list");
  }
}

TEST(OutOfMemory, ResultsAndOtherErrorsPass) {
  EXPECT_EQ(with_memory_for(never, [] { return 7; }), 7);
  EXPECT_THROW(with_memory_for(never, [] { throw std::out_of_range("else"); }), std::out_of_range);
}

}  // namespace
}  // namespace contextile
