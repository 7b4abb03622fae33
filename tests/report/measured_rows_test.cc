// Rows of measured times: what a file may say, and how each mistake is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/validation.h"
#include "report/document_batches.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The required columns in the order of docs/predict.md, with the values of a good row.
const std::vector<std::pair<std::string, std::string>> kGoodRow = {
    {"source", "me"},    {"split", "judged"},    {"cluster", "dgx-h100:1x2"},
    {"method", "p2p"},   {"strategy", "zigzag"}, {"lengths", "4K"},
    {"mask", "causal"},  {"q_heads", "8"},       {"kv_heads", "2"},
    {"head_dim", "128"}, {"dtype", "bf16"},      {"direction", "forward"},
    {"ms", "1.5"}};

// A file of one good row in which some columns have other values, or are added.
std::string rows_file(const std::map<std::string, std::string>& changed = {}) {
  std::string header;
  std::string row;
  const auto add = [&](const std::string& column, const std::string& value) {
    row += (header.empty() ? "" : ",") + value;
    header += (header.empty() ? "" : ",") + column;
  };
  std::map<std::string, std::string> added = changed;
  for (const auto& [column, value] : kGoodRow) {
    const auto found = changed.find(column);
    add(column, found == changed.end() ? value : found->second);
    added.erase(column);
  }
  for (const auto& [column, value] : added) add(column, value);
  return header + '\n' + row + '\n';
}
MeasuredRows rows_with(const std::map<std::string, std::string>& changed) {
  return parse_measured_rows(rows_file(changed), "r.csv");
}
std::string rows_refusal(const std::map<std::string, std::string>& changed) {
  return message_of([&] { return rows_with(changed); });
}
std::string text_refusal(std::string_view text) {
  return message_of([&] { return parse_measured_rows(text, "r.csv"); });
}
std::vector<DocumentBatch> documents(std::string_view text) {
  return parse_document_batches(text, "here");
}

TEST(MeasuredRows, HaveWhatTheirColumnsSay) {
  const MeasuredRows rows = rows_with({{"direction", "forward+backward"},
                                       {"strategy", "\"magi:hierarchical=on,stages=2\""},
                                       {"split", "fitted"},
                                       {"note", "\"a, b\""},
                                       {"experiment", "second machine"},
                                       {"unit", "TFLOP/s"}});
  ASSERT_EQ(rows.rows.size(), 1U);
  const MeasuredRow& row = rows.rows.front();
  EXPECT_EQ(rows.name, "r.csv");
  EXPECT_EQ(row.line, 2U);
  EXPECT_EQ(row.source, "me");
  EXPECT_EQ(row.split, RowSplit::kFitted);
  EXPECT_EQ(row.cluster->devices_per_node, 2);
  EXPECT_EQ(row.method, "p2p");
  ASSERT_TRUE(row.strategy);
  EXPECT_EQ(row.strategy->name, "magi");
  EXPECT_EQ(row.strategy->options.at("stages"), "2");
  EXPECT_THAT(row.batches, ElementsAre(DocumentBatch{{.count = 1, .tokens = 4096}}));
  EXPECT_EQ(row.mask.spec.rule, MaskSpec::Rule::kCausal);
  EXPECT_EQ(row.shape.q_heads, 8);
  EXPECT_EQ(row.shape.kv_heads, 2);
  EXPECT_EQ(row.shape.head_dim, 128);
  EXPECT_EQ(row.shape.value_dim, 128);
  EXPECT_EQ(row.shape.dtype, Dtype::kBf16);
  EXPECT_EQ(row.direction, RowDirection::kBoth);
  EXPECT_DOUBLE_EQ(row.ms, 1.5);
  EXPECT_EQ(row.note, "a, b");
  EXPECT_EQ(row.experiment, "second machine");
}

TEST(MeasuredRows, MayNameTheEngineOfTheirMethod) {
  const MeasuredRow row = rows_with({{"engine", "ring"}}).rows.front();
  EXPECT_EQ(row.engine_text, "ring");
  EXPECT_EQ(row.cluster->engine, find_engine("ring"));
  EXPECT_EQ(row.cluster->name, rows_with({{"engine", ""}}).rows.front().cluster->name);
  EXPECT_EQ(rows_with({{"engine", ""}}).rows.front().cluster->engine, EngineCosts{});
  EXPECT_THAT(rows_refusal({{"engine", "rings"}}),
              HasSubstr("r.csv: line 2, engine: engine: expected one of native"));
}

TEST(MeasuredRows, MayNameTheKernelOfTheirMethod) {
  const MeasuredRow row = rows_with({{"kernel", "fa2"}, {"engine", "ring"}}).rows.front();
  EXPECT_EQ(row.cluster->attention, find_gpu_kernel("dgx-h100", "fa2").attention);
  EXPECT_EQ(row.cluster->engine, find_engine("ring"));
  EXPECT_EQ(row.cluster->devices_per_node, 2);
  EXPECT_THAT(rows_refusal({{"kernel", "fa9"}}), HasSubstr("r.csv: line 2: kernel: expected one"));
  EXPECT_THAT(rows_refusal({{"kernel", "\"fa2,engine=torch\""}}),
              HasSubstr("kernel: expected one"));
}

TEST(MeasuredRows, MayNameTheWireOfPartialResults) {
  EXPECT_EQ(rows_with({{"wire", "bf16"}}).rows.front().wire, Dtype::kBf16);
  for (const char* original : {"", "original"}) {
    EXPECT_FALSE(rows_with({{"wire", original}}).rows.front().wire);
  }
  EXPECT_THAT(rows_refusal({{"wire", "bf61"}}), HasSubstr("r.csv: line 2, wire: "));
}

// The columns of a row that is a training step; the shape is the model's.
std::map<std::string, std::string> step_with(const std::map<std::string, std::string>& changed) {
  std::map<std::string, std::string> columns = {
      {"direction", "step"}, {"model", "gpt-8b"}, {"cluster", "dgx-h100:2x8"},
      {"q_heads", ""},       {"kv_heads", ""},    {"head_dim", ""},
      {"dtype", ""}};
  for (const auto& [column, value] : changed) columns[column] = value;
  return columns;
}

TEST(MeasuredRows, MayBeTrainingSteps) {
  const MeasuredRow row = rows_with(step_with({{"tp", "4"},
                                               {"dp", "2"},
                                               {"micro_batches", "2"},
                                               {"lengths", "8*4K|32K|32K|32K"},
                                               {"optimizer", "fsdp"},
                                               {"gradient_overlap", "off"},
                                               {"recompute", "full"},
                                               {"linear_mfu", "0.4"}}))
                              .rows.front();
  EXPECT_EQ(row.direction, RowDirection::kStep);
  EXPECT_EQ(row.kind(), RowKind::kStep);
  ASSERT_TRUE(row.step);
  EXPECT_EQ(row.step->model_text, "gpt-8b");
  EXPECT_EQ(row.step->model, load_model("gpt-8b"));
  EXPECT_EQ(row.step->sizes, (ParallelSizes{.tp = 4, .cp = 2, .dp = 2, .pp = 1}));
  EXPECT_EQ(row.step->micro_batches, 2);
  EXPECT_EQ(row.step->options.optimizer, OptimizerShards::kFsdp);
  EXPECT_EQ(row.step->options.gradient_overlap, GradientOverlap::kOff);
  EXPECT_EQ(row.step->options.recompute, Recompute::kFull);
  EXPECT_DOUBLE_EQ(row.step->options.linear_mfu, 0.4);
  EXPECT_EQ(row.shape, attention_shape_of(row.step->model, 4)) << "that of one rank";
  EXPECT_EQ(row.batches.size(), 4U);
}

TEST(MeasuredRows, GiveStepsTheDefaultsOfTheProgram) {
  const MeasuredRow row = rows_with(step_with({{"tp", ""}, {"optimizer", ""}})).rows.front();
  ASSERT_TRUE(row.step);
  EXPECT_EQ(row.step->sizes, (ParallelSizes{.tp = 1, .cp = 16, .dp = 1, .pp = 1}));
  EXPECT_EQ(row.step->micro_batches, 1);
  EXPECT_EQ(row.step->options.optimizer, IterationOptions().optimizer);
  EXPECT_EQ(row.step->options.gradient_overlap, IterationOptions().gradient_overlap);
  EXPECT_EQ(row.step->options.recompute, IterationOptions().recompute);
  EXPECT_DOUBLE_EQ(row.step->options.linear_mfu, IterationOptions().linear_mfu);
}

TEST(MeasuredRows, LetStepsRepeatTheShapeOfTheirModel) {
  EXPECT_EQ(rows_with(step_with({{"tp", "4"},
                                 {"q_heads", "8"},
                                 {"kv_heads", "2"},
                                 {"head_dim", "128"},
                                 {"dtype", "bf16"}}))
                .rows.size(),
            1U);
  EXPECT_EQ(rows_refusal(step_with({{"tp", "4"}, {"q_heads", "32"}})),
            "r.csv: line 2, q_heads: expected none, or the 8 that gpt-8b has with TP 4, found 32");
  EXPECT_EQ(rows_refusal(step_with({{"dtype", "f32"}})),
            "r.csv: line 2, dtype: expected bf16 of a step, found f32");
}

TEST(MeasuredRows, RefuseBadStepsWithTheirLine) {
  EXPECT_EQ(rows_refusal(step_with({{"model", ""}})),
            "r.csv: line 2: expected a model, which a row of direction step needs, found none");
  EXPECT_EQ(rows_refusal(step_with({{"model", ""}, {"tp", "4"}})),
            "r.csv: line 2: expected a model, which a row of direction step needs, found none");
  EXPECT_EQ(rows_refusal({{"direction", "step"}}),
            "r.csv: line 2: expected a model, which a row of direction step needs, found none");
  EXPECT_EQ(rows_refusal({{"model", "gpt-8b"}}),
            "r.csv: line 2, model: expected none in a row of direction forward, found 'gpt-8b'");
  EXPECT_EQ(rows_refusal({{"tp", "4"}}),
            "r.csv: line 2, tp: expected none in a row of direction forward, found '4'");
  EXPECT_EQ(rows_refusal({{"q_heads", ""}}),
            "r.csv: line 2, q_heads: expected a value, found none");
  EXPECT_EQ(rows_refusal({{"dtype", ""}}), "r.csv: line 2, dtype: expected a value, found none");
  EXPECT_EQ(
      rows_refusal(step_with({{"tp", "3"}})),
      "r.csv: line 2: expected a product of tp, dp and pp that divides 16 devices, found 3, 1 and "
      "1");
  EXPECT_THAT(rows_refusal(step_with({{"tp", "16"}})),
              AllOf(HasSubstr("r.csv: line 2: "), HasSubstr("TP 16")));
  EXPECT_EQ(rows_refusal(step_with({{"dp", "2"}})),
            "r.csv: line 2, lengths: expected a multiple of 2 batches, the micro-batches of a "
            "step, found 1");
  struct BadValue {
    const char* column;
    const char* value;
    const char* words;
  };
  for (const BadValue& bad :
       {BadValue{"model", "gpt-8", "did you mean 'gpt-8b'?"}, BadValue{"tp", "0", "at least 1"},
        BadValue{"dp", "two", "'two'"}, BadValue{"pp", "9999999999", "expected at most"},
        BadValue{"micro_batches", "-1", "'-1'"},
        BadValue{"optimizer", "zero2", "replicated, zero1, fsdp"},
        BadValue{"gradient_overlap", "yes", "off, on"},
        BadValue{"recompute", "some", "none, selective, full"},
        BadValue{"linear_mfu", "1.5", "found 1.5"},
        BadValue{"linear_mfu", "half", "expected a number"}}) {
    const std::string message = rows_refusal(step_with({{bad.column, bad.value}}));
    EXPECT_TRUE(message.starts_with(fmt::format("r.csv: line 2, {}: ", bad.column))) << message;
    EXPECT_THAT(message, HasSubstr(bad.words));
  }
  // A file that may have steps needs no shape, but its other rows do.
  const std::string text =
      "source,split,cluster,method,strategy,lengths,mask,direction,ms,model\n"
      "me,judged,dgx-h100:1x8,a,zigzag,4K,causal,step,1,gpt-8b\n";
  EXPECT_EQ(parse_measured_rows(text, "r.csv").rows.front().shape.q_heads, 32);
  EXPECT_EQ(text_refusal(text + "me,judged,dgx-h100:1x8,a,zigzag,4K,causal,forward,1,\n"),
            "r.csv: line 3, q_heads: expected a value, found none");
  EXPECT_THAT(message_of<IoError>([] {
                return rows_with(step_with({{"model", "no/such.json"}}));
              }),
              AllOf(HasSubstr("r.csv: line 2, model: "), HasSubstr("no/such.json")));
}

TEST(MeasuredRows, MayHaveNoStrategy) {
  EXPECT_FALSE(rows_with({{"strategy", ""}}).rows.front().strategy);
}

TEST(MeasuredRows, TakeColumnsInAnyOrderAndAnyLineEnd) {
  std::string header;
  std::string row;
  for (auto column = kGoodRow.rbegin(); column != kGoodRow.rend(); ++column) {
    header += (header.empty() ? "" : ",") + column->first;
    row += (row.empty() ? "" : ",") + column->second;
  }
  const MeasuredRows rows =
      parse_measured_rows("\xef\xbb\xbf" + header + "\r\n" + row + "\r\n\r\n" + row, "r.csv");
  ASSERT_EQ(rows.rows.size(), 2U);
  EXPECT_EQ(rows.rows[1].line, 4U);
  EXPECT_EQ(rows.rows[0].cluster, rows.rows[1].cluster) << "a cluster is loaded once";
}

TEST(MeasuredRows, GiveDocumentsAsRunsAndBatches) {
  EXPECT_THAT(documents("65536"), ElementsAre(DocumentBatch{{1, 65536}}));
  EXPECT_THAT(documents("256+7392 + 544"),
              ElementsAre(DocumentBatch{{1, 256}, {1, 7392}, {1, 544}}));
  EXPECT_THAT(documents("8*8K|1"), ElementsAre(DocumentBatch{{8, 8192}}, DocumentBatch{{1, 1}}));
  EXPECT_THAT(lengths_of({{2, 5}, {1, 7}}), ElementsAre(5, 5, 7));
  for (const char* text :
       {"", "+", "8*", "*8", "8*8*8", "0", "0*8", "-1", "1.5", "1,2", "8 8", "|"}) {
    EXPECT_THAT(message_of([&] { return documents(text); }),
                AllOf(HasSubstr("here: expected"), HasSubstr("found")))
        << text;
  }
}

TEST(MeasuredRows, BoundTheDocumentsOfABatch) {
  EXPECT_EQ(documents("1M*2K").size(), 1U);
  for (const char* text : {"1048577*1", "1M*1+1", "2049M", "1M*2K+1", "9223372036854775807*9",
                           "1M*9223372036854775807"}) {
    EXPECT_THAT(message_of([&] { return documents(text); }), HasSubstr("here: expected at most"))
        << text;
  }
}

TEST(MeasuredRows, RefuseEachBadValueWithLineAndColumn) {
  struct BadValue {
    const char* column;
    const char* value;
    std::vector<const char*> words;
  };
  const BadValue kBad[] = {
      {"source", "", {"expected a value, found none"}},
      {"split", "jugded", {"fitted, judged", "'jugded'", "did you mean 'judged'?"}},
      {"cluster", "dgx-h10:1x8", {"did you mean 'dgx-h100'?"}},
      {"cluster", "dgx-h100:8", {"NODESxDEVICES"}},
      {"strategy", "zigzg", {"did you mean 'zigzag'?"}},
      {"strategy", "\"ring,zigzag\"", {"expected one strategy, found 2"}},
      {"strategy", "all", {"expected one strategy"}},
      {"lengths", "8x8192", {"whole number", "'8x8192'"}},
      {"mask", "casual", {"'casual'"}},
      {"q_heads", "0", {"at least 1", "'0'"}},
      {"q_heads", "9999999999", {"expected at most"}},
      {"kv_heads", "two", {"'two'"}},
      {"dtype", "bf61", {"'bf61'"}},
      {"direction", "forwards", {"did you mean 'forward'?"}},
      {"ms", "fast", {"expected a number", "'fast'"}},
      {"ms", "0", {"1e-6 to 1e12 ms", "'0'"}},
      {"ms", "-3", {"1e-6 to 1e12 ms"}},
      {"ms", "nan", {"expected a number"}},
      {"ms", "1e400", {"'1e400'"}}};
  for (const BadValue& bad : kBad) {
    const std::string message = rows_refusal({{bad.column, bad.value}});
    EXPECT_TRUE(message.starts_with(fmt::format("r.csv: line 2, {}: ", bad.column))) << message;
    for (const char* words : bad.words) EXPECT_THAT(message, HasSubstr(words));
  }
  // The shape as a whole is checked by the library.
  EXPECT_THAT(rows_refusal({{"kv_heads", "3"}}),
              AllOf(HasSubstr("r.csv: line 2: "), HasSubstr("3")));
  EXPECT_THAT(rows_refusal({{"head_dim", "1000000"}}), HasSubstr("r.csv: line 2: "));
}

TEST(MeasuredRows, RefuseBadHeaders) {
  EXPECT_THAT(rows_refusal({{"strateg", "x"}}),
              AllOf(HasSubstr("r.csv: line 1: "), HasSubstr("'strateg'"),
                    HasSubstr("did you mean 'strategy'?")));
  std::string text = rows_file();
  EXPECT_THAT(text_refusal("ms," + text), AllOf(HasSubstr("every column once"), HasSubstr("'ms'")));
  text.replace(text.find(",ms"), 3, "");
  EXPECT_THAT(text_refusal(text), HasSubstr("line 1: expected the column ms, found only source"));
}

TEST(MeasuredRows, RefuseFilesWithoutRows) {
  EXPECT_EQ(text_refusal(""), "r.csv: expected a header and rows, found nothing");
  EXPECT_THAT(text_refusal("\n\n"), HasSubstr("found nothing"));
  const std::string text = rows_file();
  EXPECT_THAT(text_refusal(text.substr(0, text.find('\n') + 1)), HasSubstr("at least one row"));
}

TEST(MeasuredRows, RefuseRowsOfAnotherWidth) {
  EXPECT_EQ(text_refusal(rows_file() + "a,b\n"),
            "r.csv: line 3: expected 13 fields, as the header has, found 2");
}

TEST(MeasuredRows, RefuseTooManyRows) {
  const std::string text = rows_file();
  const std::string row = text.substr(text.find('\n') + 1);
  std::string many = text;
  for (std::size_t i = 0; i < kMaxMeasuredRows; ++i) many += row;
  EXPECT_THAT(text_refusal(many), HasSubstr("expected at most 20000 rows, found more"));
}

TEST(MeasuredRows, NameThePlaceOfAMissingClusterFile) {
  EXPECT_THAT(message_of<IoError>([] {
                return rows_with({{"cluster", "no/such.json"}});
              }),
              AllOf(HasSubstr("r.csv: line 2, cluster: "), HasSubstr("no/such.json")));
}

}  // namespace
}  // namespace contextile
