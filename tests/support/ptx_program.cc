#include "support/ptx_program.h"

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <set>
#include <span>

#include "support/message_of.h"

namespace contextile::ptx {
namespace {

constexpr int kSharedBytes = 1024;

std::vector<std::uint64_t>& output() {
  static std::vector<std::uint64_t> all;
  return all;
}
bool is_output(std::uint64_t address, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(output().data());
  const std::uint64_t offset = address - begin;
  return offset <= 8 * output().size() && bytes <= 8 * output().size() - offset;
}

struct Opcodes {
  std::set<std::string> all;
  ~Opcodes() {
    const char* name = std::getenv("CONTEXTILE_PTX_OPCODES");
    if (name == nullptr) return;
    std::ofstream file(name);
    for (const std::string& opcode : all) file << opcode << '\n';
  }
};

}  // namespace

std::string program(const std::string& body) {
  return R"(
.version 9.0
.target sm_90a
.extern .shared .align 1024 .b8 shared[];
.visible .entry test(.param .align 8 .b8 test_param_0[8])
{
.reg .pred %p<9>;
.reg .b16 %rs<9>;
.reg .b32 %r<99>;
.reg .f32 %f<9>;
.reg .b64 %rd<99>;
.reg .f64 %fd<9>;
ld.param.u64 %rd2, [test_param_0];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 8;
add.s64 %rd1, %rd2, %rd3;
mov.u32 %r2, shared;
shl.b32 %r3, %r1, 4;
add.s32 %r2, %r2, %r3;
)" + body +
         "\nret;\n}\n";
}

std::vector<std::uint64_t> run_module(const std::string& text, int threads, Timing timing,
                                      std::int64_t most_instructions) {
  static Opcodes opcodes;
  Module module(text);
  output().assign(static_cast<std::size_t>(threads), 0);
  const std::uint64_t* const data = output().data();
  Machine machine;
  machine.timing = timing;
  machine.is_memory = is_output;
  machine.most_instructions = most_instructions;
  machine.opcodes = &opcodes.all;
  Launch launch;
  launch.threads = threads;
  launch.shared_bytes = kSharedBytes;
  launch.parameters = std::as_bytes(std::span(&data, 1));
  run(machine, module.kernel("test"), launch);
  return output();
}

std::vector<std::uint64_t> run_program(const std::string& body, int threads, Timing timing) {
  return run_module(program(body), threads, timing, 1'000'000);
}

std::string fault_of(const std::string& body, int threads) {
  return message_of<Fault>([&] { static_cast<void>(run_program(body, threads)); });
}

}  // namespace contextile::ptx
