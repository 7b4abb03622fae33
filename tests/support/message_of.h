// What a refused call says.
#pragma once

#include <string>

#include "contextile/base.h"

namespace contextile {

// The text of the InvalidArgument that `action` throws; "no error" if it throws none.
template <typename Action>
std::string message_of(const Action& action) {
  try {
    static_cast<void>(action());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace contextile
