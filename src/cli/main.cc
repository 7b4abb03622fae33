// The program `contextile`.
#include "cli/commands/contextile_program.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  return contextile::run_program(contextile::kContextileProgram, argc, argv);
}
