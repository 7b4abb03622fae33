// The program `contextile-labs`.
#include "cli/command_program.h"
#include "labs/program.h"

int main(int argc, char** argv) {
  return contextile::run_program(contextile::kLabsProgram, argc, argv);
}
