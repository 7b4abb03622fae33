// All tables, with one function each: the figure's file defines it (dcp_fig13 is in dcp/fig13.cc),
// and registry.cc lists it.
#pragma once

#include "labs/papers/paper_table.h"

namespace contextile {

[[nodiscard]] PaperTable dcp_fig1();
[[nodiscard]] PaperTable dcp_fig5();
[[nodiscard]] PaperTable dcp_fig7();
[[nodiscard]] PaperTable dcp_fig13();
[[nodiscard]] PaperTable dcp_fig14();
[[nodiscard]] PaperTable dcp_fig15();
[[nodiscard]] PaperTable dcp_fig17();
[[nodiscard]] PaperTable dcp_fig18();
[[nodiscard]] PaperTable dcp_fig19();
[[nodiscard]] PaperTable dcp_fig20();
[[nodiscard]] PaperTable dcp_fig22();

[[nodiscard]] PaperTable fcp_fig2();
[[nodiscard]] PaperTable fcp_fig9();
[[nodiscard]] PaperTable fcp_fig10();
[[nodiscard]] PaperTable fcp_fig11();
[[nodiscard]] PaperTable fcp_fig12();
[[nodiscard]] PaperTable fcp_fig13();
[[nodiscard]] PaperTable fcp_fig14();
[[nodiscard]] PaperTable fcp_lengths();
[[nodiscard]] PaperTable fcp_sec35();
[[nodiscard]] PaperTable fcp_shards();
[[nodiscard]] PaperTable fcp_table1();
[[nodiscard]] PaperTable fcp_table2();

[[nodiscard]] PaperTable distca_appa();
[[nodiscard]] PaperTable distca_fig3();
[[nodiscard]] PaperTable distca_fig4();
[[nodiscard]] PaperTable distca_fig5();
[[nodiscard]] PaperTable distca_fig6();
[[nodiscard]] PaperTable distca_fig9();
[[nodiscard]] PaperTable distca_fig10();
[[nodiscard]] PaperTable distca_fig11();
[[nodiscard]] PaperTable distca_fig12();

[[nodiscard]] PaperTable inference_helix();
[[nodiscard]] PaperTable inference_modes();
[[nodiscard]] PaperTable inference_query();
[[nodiscard]] PaperTable inference_ttft();

[[nodiscard]] PaperTable megatron_example();
// Published measurements next to their predictions (labs/measured).
[[nodiscard]] PaperTable measured();
// Every strategy over datasets, masks and sizes; it belongs to no paper.
[[nodiscard]] PaperTable sweep();

}  // namespace contextile
