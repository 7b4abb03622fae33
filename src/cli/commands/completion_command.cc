// contextile completion: what a shell sources to complete command lines of this program.
#include <memory>
#include <string>

#include "cli/commands/contextile_program.h"
#include "cli/completion_words.h"
#include "cli/help.h"
#include "cli/options/types.h"
#include "cli/output.h"

namespace contextile {

Action add_completion_command(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  add_required(app, "SHELL", {"", "whose script to print: {}", "", completion_shells()},
               [shell](const std::string& text) { *shell = text; });
  add_examples(app, {"contextile completion bash > contextile.bash && . ./contextile.bash",
                     "contextile completion fish > contextile.fish"});
  return [shell] {
    print(completion_script(*shell));
    return kExitOk;
  };
}

}  // namespace contextile
