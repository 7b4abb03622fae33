// CSV as RFC 4180 has it, and everything that is none.
#include "report/csv_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "support/message_of.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using CsvFields = std::vector<std::string>;

std::vector<CsvRecord> records_of(std::string_view text) {
  CsvReader reader(text, "a.csv");
  std::vector<CsvRecord> records;
  for (CsvRecord record; reader.next(record);) records.push_back(record);
  return records;
}
std::vector<CsvFields> csv_fields_of(std::string_view text) {
  std::vector<CsvFields> fields;
  for (const CsvRecord& record : records_of(text)) fields.push_back(record.fields);
  return fields;
}
std::string csv_refusal(std::string_view text) {
  return message_of([&] { return records_of(text); });
}

TEST(CsvReader, SplitsFieldsAtCommasAndRecordsAtLineEnds) {
  EXPECT_THAT(csv_fields_of("a,b\nc,d\n"), ElementsAre(CsvFields{"a", "b"}, CsvFields{"c", "d"}));
  EXPECT_THAT(csv_fields_of("a,b\r\nc,d"), ElementsAre(CsvFields{"a", "b"}, CsvFields{"c", "d"}));
  EXPECT_THAT(csv_fields_of(","), ElementsAre(CsvFields{"", ""}));
  EXPECT_THAT(csv_fields_of(" a , b\t\n"), ElementsAre(CsvFields{" a ", " b\t"}));
}

TEST(CsvReader, ReadsNothingFromNothing) {
  EXPECT_TRUE(records_of("").empty());
  EXPECT_TRUE(records_of("\n\r\n\n").empty());
  EXPECT_TRUE(records_of("\xef\xbb\xbf").empty());
}

TEST(CsvReader, SkipsAByteOrderMarkAndBlankLines) {
  const std::vector<CsvRecord> records = records_of("\xef\xbb\xbfname\n\n\r\nx\n");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_THAT(records[0].fields, ElementsAre("name"));
  EXPECT_EQ(records[0].line, 1U);
  EXPECT_THAT(records[1].fields, ElementsAre("x"));
  EXPECT_EQ(records[1].line, 4U);
}

TEST(CsvReader, QuotedFieldsHoldCommasLineEndsAndQuotes) {
  EXPECT_THAT(csv_fields_of("\"a,b\",\"say \"\"so\"\"\",\"\"\n"),
              ElementsAre(CsvFields{"a,b", "say \"so\"", ""}));
  const std::vector<CsvRecord> records = records_of("\"two\r\nlines\",b\nc\n");
  EXPECT_THAT(records[0].fields, ElementsAre("two\nlines", "b"));
  EXPECT_EQ(records[1].line, 3U) << "lines inside quotes count";
}

TEST(CsvReader, KeepsUtf8AsItIs) {
  EXPECT_THAT(csv_fields_of("gr\xc3\xb6\xc3\x9f"
                            "e\n"),
              ElementsAre(CsvFields{"gr\xc3\xb6\xc3\x9f"
                                    "e"}));
}

TEST(CsvReader, RefusesMisplacedQuotesWithLineAndField) {
  EXPECT_THAT(csv_refusal("a\nb,c\"d\n"), AllOf(HasSubstr("a.csv: line 2, field 2: "),
                                                HasSubstr("in quotes"), HasSubstr("behind 'c'")));
  EXPECT_THAT(csv_refusal("\"a\"b\n"), AllOf(HasSubstr("a.csv: line 1, field 1: "),
                                             HasSubstr("closing quote"), HasSubstr("'b'")));
  EXPECT_THAT(csv_refusal("a\n\"open\nand on\n"),
              AllOf(HasSubstr("line 2, field 1: "), HasSubstr("closing quote"),
                    HasSubstr("end of the text")));
}

TEST(CsvReader, RefusesBytesThatNoTextHas) {
  EXPECT_THAT(csv_refusal(std::string_view("a,b\0c\n", 6)),
              HasSubstr("line 1, field 2: expected text, found the byte 0x00"));
  EXPECT_THAT(csv_refusal("a\nb\x1b[31m\n"), HasSubstr("line 2, field 1: expected text"));
  EXPECT_THAT(csv_refusal("a\rb\n"), HasSubstr("0x0d"));
  EXPECT_THAT(csv_refusal("\xff\n"), HasSubstr("0xff"));
  EXPECT_THAT(csv_refusal("\"\xc3\n\""), HasSubstr("0xc3"));
}

TEST(CsvReader, RefusesHugeFieldsAndRecords) {
  const std::string most(kMaxCsvFieldBytes, 'x');
  EXPECT_EQ(csv_fields_of(most)[0][0].size(), kMaxCsvFieldBytes);
  EXPECT_THAT(csv_refusal("a," + most + "x\n"), HasSubstr("line 1, field 2: expected at most"));
  EXPECT_THAT(csv_refusal("\"" + std::string(kMaxCsvFieldBytes + 1, '\n') + "\""),
              HasSubstr("is a quote not closed?"));
  EXPECT_EQ(csv_fields_of(std::string(kMaxCsvFields - 1, ','))[0].size(), kMaxCsvFields);
  EXPECT_THAT(csv_refusal(std::string(kMaxCsvFields, ',')),
              HasSubstr("expected at most 256 fields"));
}

}  // namespace
}  // namespace contextile
