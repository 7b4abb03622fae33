// The error message of a call.
#pragma once

#include <string>

#include "contextile/base.h"

namespace contextile {

// The text of the InvalidArgument that the call throws; "none" if it throws nothing.
std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

}  // namespace contextile
