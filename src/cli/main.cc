// The program `contextile`.
#include "cli/command_program.h"
#include "cli/commands/contextile_program.h"

int main(int argc, char** argv) {
  return contextile::run_program(contextile::kContextileProgram, argc, argv);
}
