// The names of CLI11's two types that declarations need. CLI11 itself costs every source that
// includes it four seconds, so only those that parse, complete or print options do.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
}  // namespace CLI
