// The message of a refused call.
#pragma once

#include <string>

#include "contextile/base.h"

namespace contextile {

// The text of the error of that kind that `action` throws; "no error" if it throws none.
template <typename Thrown = InvalidArgument, typename Action>
std::string message_of(const Action& action) {
  try {
    static_cast<void>(action());
  } catch (const Thrown& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace contextile
