// The sentence at the top of a report page.
#pragma once

#include <string>

#include "report/html/page_tables.h"

namespace contextile {

// "A: auto is predicted 7.75 times as fast as B: zigzag, which waits 74% of its attention time,
// mostly for one NIC per node." For a single plan it says how long this one waits. Text, not HTML.
[[nodiscard]] std::string headline_text(ReportSubjects subjects);

}  // namespace contextile
