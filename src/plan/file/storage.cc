#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/file_bytes.h"
#include "base/out_of_memory.h"
#include "base/replaced_file.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/file/plan_file.h"

namespace contextile {

void save_plan(const Plan& plan, const std::string& path) {
  const std::vector<std::uint8_t> bytes = serialize(plan);
  ReplacedFile file(path);
  file.write(bytes);
  file.commit();
}

Plan load_plan(const std::string& path) {
  const FileBytes file(path, stated_file_bytes);
  return with_memory_for(
      [&] {
        return fmt::format("the plan in {}, a file of {} bytes", file.name(), file.bytes().size());
      },
      [&] { return deserialize(file.bytes(), file.name()); });
}

}  // namespace contextile
