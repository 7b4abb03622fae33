// The list of tables.
#include <fmt/format.h>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "labs/papers/tables.h"

namespace contextile {

std::span<const PaperTable> paper_tables() {
  // Ordered by paper, then by kind (figure, table), then by number.
  static const std::array kTables = {
      // clang-format off
      dcp_fig1(), dcp_fig5(), dcp_fig7(), dcp_fig13(), dcp_fig14(), dcp_fig15(), dcp_fig17(), dcp_fig18(), dcp_fig19(), dcp_fig20(), dcp_fig22(),
      fcp_fig2(), fcp_fig9(), fcp_fig10(), fcp_fig11(), fcp_fig12(), fcp_fig13(), fcp_fig14(), fcp_lengths(), fcp_sec35(), fcp_shards(), fcp_table1(), fcp_table2(),
      distca_appa(), distca_fig3(), distca_fig4(), distca_fig5(), distca_fig6(), distca_fig9(), distca_fig10(), distca_fig11(), distca_fig12(),
      inference_helix(), inference_modes(), inference_query(), inference_ttft(),
      megatron_example(),
      measured(),
      sweep()
      // clang-format on
  };
  return kTables;
}

const PaperTable& find_paper_table(std::string_view name) {
  std::vector<std::string> names;
  for (const PaperTable& table : paper_tables()) {
    if (table.name == name) return table;
    names.emplace_back(table.name);
  }
  fail_argument("table: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace contextile
