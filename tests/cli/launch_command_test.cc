// `contextile launch`, and runs whose ranks are processes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/shell.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class Launch : public ShellTest {
 protected:
  // True if this build has the transport.
  bool has(const std::string& transport) {
    const json info = json::parse(contextile({"info", "--json"}).out);
    for (const json& part : info.at("transports")) {
      if (part.at("name") == transport) return part.at("built_in").get<bool>();
    }
    return false;
  }

  // The output of a run without the values that differ from run to run.
  static json comparable(const std::string& text) {
    json masks = json::parse(text).at("masks");
    for (json& mask : masks) {
      for (const char* key : {"forward_s", "backward_s", "exposed_s", "repeats"}) mask.erase(key);
    }
    return masks;
  }
};

TEST_F(Launch, RanksAsProcessesHaveTheBitsOfThreads) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::string plan =
      small_plan("p.plan", {"--mask", "local=sliding_window:32", "--mask", "causal"});
  const std::vector<std::string> run = {"run", plan, "--seed", "3", "--json"};
  const Outcome threads = contextile(run);
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = contextile(joined({"launch", "-n", "4", "--"}, run));
  ASSERT_EQ(processes.exit_code, 0) << processes.err;
  EXPECT_EQ(json::parse(processes.out).at("transport"), "gloo");
  EXPECT_EQ(comparable(processes.out), comparable(threads.out));
  EXPECT_NE(comparable(threads.out).at(0).at("result_bits"), "0000000000000000");
}

TEST_F(Launch, RanksWithDifferentPlansLeaveRecordsThatNameTheOddOne) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::string usual = small_plan("0.plan");
  const std::string odd = small_plan("2.plan", {"--strategy", "zigzag"});
  for (const char* name : {"1.plan", "3.plan"}) std::filesystem::copy_file(usual, path(name));
  ASSERT_NE(read(usual), read(odd));
  const std::string program = CONTEXTILE_PROGRAM;
  const Outcome outcome =
      contextile({"launch", "-n", "4", "--", program, "run", path("{rank}.plan"), "--transport",
                  "gloo", "--rank", "{rank}", "--rendezvous", "{rendezvous}", "--run-id",
                  "{run-id}", "--flight", path("f")});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("expected one plan on all ranks, found digest"));
  const Outcome report = contextile({"report", path("f"), "--json"});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  const json culprits = json::parse(report.out).at("culprits");
  ASSERT_EQ(culprits.size(), 1U) << culprits;
  EXPECT_EQ(culprits[0].at("rank"), 2);
}

TEST_F(Launch, ARankThatDoesNotComeIsNamedThoughItsRecordOfAnEarlierRunIsThere) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::string plan = small_plan("p.plan");
  const auto launch_three = [&](const std::string& run_id) {
    const Outcome outcome = contextile({"launch", "-n", "3", "--ranks", "4", "--rendezvous",
                                        "file://" + path(""), "--run-id", run_id, "--", "run", plan,
                                        "--interface", "lo", "--timeout", "0.5"});
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_THAT(outcome.err, HasSubstr("rank 3 of 4 did not come"));
    EXPECT_THAT(outcome.err, HasSubstr("contextile report " + plan + ".flight shows"));
    return json::parse(read(plan + ".flight/rank-0.json"));
  };
  json old = launch_three("first");
  EXPECT_EQ(old.at("steps").at(0).at("op"), "rendezvous");
  old["rank"] = 3;
  old["failed_us"] = old.at("failed_us").get<std::int64_t>() - 3'000'000;
  static_cast<void>(file("p.plan.flight/rank-3.json", old.dump()));
  static_cast<void>(launch_three("second"));
  const Outcome report = contextile({"report", plan + ".flight", "--json"});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  const json culprits = json::parse(report.out).at("culprits");
  ASSERT_EQ(culprits.size(), 1U) << culprits;
  EXPECT_EQ(culprits[0].at("rank"), 3);
}

TEST_F(Launch, RanksWithOtherOptionsAreNamed) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::string plan = small_plan("p.plan");
  const auto error_of = [&](const std::string& option) {
    const std::string command = std::string(CONTEXTILE_PROGRAM) + " run " + plan +
                                " --transport gloo --rank {rank} --rendezvous {rendezvous} "
                                "--run-id {run-id} $(test {rank} = 2 && echo " +
                                option + ")";
    const Outcome outcome = contextile({"launch", "-n", "4", "--", "sh", "-c", command});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error_of("--repeats 3"),
              HasSubstr("the same repeats on all ranks, found 1 on rank 0 and 3 on rank 2"));
  EXPECT_THAT(error_of("--kernel reference"),
              HasSubstr("kernel on all ranks, found the preferred one on rank 0 and reference on"));
  EXPECT_THAT(error_of("--seed 7"), HasSubstr("the same seed on all ranks"));
}

TEST_F(Launch, RanksTakeTheirSecretFromAFileThatOthersCannotRead) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::string plan = small_plan("p.plan");
  const std::string secret = file("secret", "only these ranks know it\n");
  const auto launch = [&] {
    return contextile({"launch", "-n", "4", "--secret-file", secret, "--", "run", plan});
  };
  std::filesystem::permissions(secret, std::filesystem::perms(0644));
  const Outcome readable = launch();
  EXPECT_EQ(readable.exit_code, 2);
  EXPECT_THAT(readable.err, AllOf(HasSubstr("chmod 600"), HasSubstr("found the mode 644")));
  std::filesystem::permissions(secret, std::filesystem::perms(0600));
  EXPECT_EQ(launch().exit_code, 0);
  const Outcome missing =
      contextile({"launch", "-n", "4", "--secret-file", path("none"), "--", "run", plan});
  EXPECT_EQ(missing.exit_code, 2) << missing.err;
  const Outcome threads = contextile({"run", plan, "--secret-file", secret});
  EXPECT_EQ(threads.exit_code, 2);
  EXPECT_THAT(threads.err, HasSubstr("--secret-file, --interface: expected with --transport gloo"));
}

TEST_F(Launch, TwoLaunchesOfOneGroupMeetInAFolder) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::string plan = small_plan("p.plan");
  const std::string program = CONTEXTILE_PROGRAM;
  const std::string half = program + " launch -n 2 --ranks 4 --run-id one --rendezvous file://" +
                           path("") + " --first-rank ";
  const std::string behind = " -- run " + plan + " --interface lo --seed 1 --json > ";
  EXPECT_EQ(std::system((half + "2" + behind + path("b.json") + " & " + half + "0" + behind +
                         path("a.json") + " && wait %1")
                            .c_str()),
            0);
  EXPECT_TRUE(json::parse(read(path("a.json"))).at("ok").get<bool>());
  EXPECT_EQ(read(path("b.json")), "");  // rank 0 speaks for all
}

TEST_F(Launch, RanksOfAnMpiJobHaveTheBitsOfThreads) {
  if (!has("mpi")) GTEST_SKIP() << "built without MPI (libopenmpi-dev)";
  const std::string mpirun =
      "OMPI_MCA_btl_tcp_if_include=lo timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe ";
  if (std::system((mpirun + "-n 2 true > /dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "needs an mpirun that starts processes here (openmpi-bin)";
  }
  const std::string plan = small_plan("p.plan");
  const std::string run = std::string(CONTEXTILE_PROGRAM) + " run " + plan + " --seed 3 --json";
  const std::string command = mpirun + "-n 4 " + run + " --transport mpi > " + path("mpi.json");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const Outcome threads = contextile({"run", plan, "--seed", "3", "--json"});
  EXPECT_EQ(comparable(read(path("mpi.json"))), comparable(threads.out));
}

TEST_F(Launch, ProfilesTheGroupOfItsRanks) {
  if (!has("gloo")) GTEST_SKIP() << "built without gloo (libgloo-dev)";
  const std::vector<std::string> profile = {"profile",    "--quick", "--heads",    "1",
                                            "--kv-heads", "1",       "--head-dim", "8"};
  const Outcome outcome = contextile(
      joined({"launch", "-n", "2", "--"}, joined(profile, {"-o", path("m.json"), "--json"})));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(outcome.out);  // of rank 0 alone
  EXPECT_EQ(document.at("transport"), "gloo");
  EXPECT_EQ(document.at("ranks"), 2);
  EXPECT_EQ(document.at("cluster").at("nodes"), 2);
  EXPECT_EQ(document.at("cluster"), json::parse(read(path("m.json"))));
  EXPECT_EQ(document.at("busy").size(), 2U);
  const Outcome one_node =
      contextile(joined({"launch", "-n", "2", "--"}, joined(profile, {"--nodes", "1", "--csv"})));
  EXPECT_EQ(one_node.exit_code, 0) << one_node.err;
  EXPECT_EQ(
      contextile(joined({"launch", "-n", "3", "--"}, joined(profile, {"--nodes", "2"}))).exit_code,
      2);
}

TEST_F(Launch, ProfilesAnMpiJob) {
  if (!has("mpi")) GTEST_SKIP() << "built without MPI (libopenmpi-dev)";
  const std::string mpirun =
      "OMPI_MCA_btl_tcp_if_include=lo timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe ";
  if (std::system((mpirun + "-n 2 true > /dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "needs an mpirun that starts processes here (openmpi-bin)";
  }
  const std::string command = mpirun + "-n 2 " + CONTEXTILE_PROGRAM +
                              " profile --transport mpi --quick --heads 1 --kv-heads 1 "
                              "--head-dim 8 -o " +
                              path("mpi.json") + " > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(json::parse(read(path("mpi.json"))).at("nodes"), 2);
}

TEST_F(Launch, RunsAnyProgramThatIsToldItsRank) {
  const Outcome outcome =
      contextile({"launch", "-n", "3", "--", "sh", "-c", "echo rank {rank} of {ranks}, {rank}"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* line : {"rank 0 of 3, 0\n", "rank 1 of 3, 1\n", "rank 2 of 3, 2\n"}) {
    EXPECT_THAT(outcome.out, HasSubstr(line));
  }
}

TEST_F(Launch, ExitsAsTheRankThatFailed) {
  EXPECT_EQ(contextile({"launch", "-n", "3", "--", "sh", "-c", "test {rank} != 1"}).exit_code, 1);
  const Outcome killed =
      contextile({"launch", "-n", "2", "--", "sh", "-c", "if [ {rank} = 1 ]; then kill -9 $$; fi"});
  EXPECT_EQ(killed.exit_code, 3);
  EXPECT_THAT(killed.err, HasSubstr("rank 1 was ended by signal 9"));
}

// Otherwise launch would wait for ever for the rank that sleeps, or is stopped.
TEST_F(Launch, EndsTheOthersWhenARankHasFailed) {
  for (const char* other : {"exec sleep 1000", "kill -STOP $$"}) {
    SCOPED_TRACE(other);
    const Outcome outcome =
        contextile({"launch", "-n", "2", "--grace", "0.1", "--", "sh", "-c",
                    std::string("if [ {rank} = 1 ]; then exit 1; fi; ") + other});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("rank 0 was ended by signal"));
  }
}

// A launch whose ranks each do their part of `commands`, which the launch's SIGTERM reaches when
// all have begun.
class ToldToEnd : public Launch {
 protected:
  Outcome told_to_end(const std::vector<std::string>& ranks, const std::string& options = "") {
    std::string waits;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      static_cast<void>(file(fmt::format("{}.sh", i), ranks[i] + "\n"));
      waits += fmt::format("until [ -e begun.{} ]; do sleep 0.01; done\n", i);
    }
    return bash(fmt::format(
        "rm -f begun.*\n'{}' launch -n {} {} -- sh {{rank}}.sh &\n{}kill -TERM $!\nwait $!\n",
        CONTEXTILE_PROGRAM, ranks.size(), options, waits));
  }
};

TEST_F(ToldToEnd, ALaunchEndsAsItsRanksDo) {
  const std::string ends_well = "trap 'kill $!; exit 0' TERM\nsleep 1000 & touch begun.{}\nwait\n";
  const Outcome well = told_to_end(
      {fmt::format(fmt::runtime(ends_well), 0), fmt::format(fmt::runtime(ends_well), 1)});
  EXPECT_EQ(well.exit_code, 0);
  EXPECT_EQ(well.err, "");
  for (const char* first : {"touch begun.0\nexec sleep 1000",
                            "trap 'kill $!; exit 0' TERM\nsleep 1000 & touch begun.0\nwait",
                            "trap 'kill $!; exit 3' TERM\nsleep 1000 & touch begun.0\nwait"}) {
    SCOPED_TRACE(first);
    const Outcome outcome = told_to_end({first, "touch begun.1\nexec sleep 1000"});
    EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
    EXPECT_EQ(outcome.err, "");
  }
}

TEST_F(ToldToEnd, ARankThatFailsInAnotherWayIsReported) {
  const std::string other = "touch begun.1\nexec sleep 1000";
  const Outcome crashed =
      told_to_end({"trap 'kill $!; kill -SEGV $$' TERM\nsleep 1000 & touch begun.0\nwait", other});
  EXPECT_EQ(crashed.exit_code, 3);
  EXPECT_EQ(crashed.err, "contextile: launch: rank 0 was ended by signal 11\n");
  const Outcome deaf =
      told_to_end({"trap '' TERM\ntouch begun.0\nexec sleep 1000", other}, "--grace 0.1");
  EXPECT_EQ(deaf.exit_code, 3);
  EXPECT_EQ(deaf.err,
            "contextile: launch: rank 0 was ended by signal 9, 0.1 s (--grace) after signal 15 was "
            "passed on\n");
}

TEST_F(Launch, RefusesWhatCannotWork) {
  expect_bad_input(contextile({"launch", "-n", "2", "--", "plan"}),
                   {"expected 'run', 'profile' or 'serve'", "'plan'"});
  expect_bad_input(contextile({"launch", "-n", "2", "--", "no/such/program"}),
                   {"no/such/program: cannot start"});
  expect_bad_input(contextile({"launch", "-n", "2", "--ranks", "4", "--", "true"}),
                   {"expected --rendezvous"});
  expect_bad_input(contextile({"launch", "-n", "2", "--ranks", "4", "--first-rank", "3",
                               "--rendezvous", "tcp://localhost:1", "--", "true"}),
                   {"--first-rank", "4 ranks"});
  expect_bad_input(contextile({"launch", "-n", "2"}), {"COMMAND"});
  for (const char* port : {"0", "70000", "http"}) {
    expect_bad_input(contextile({"launch", "--rendezvous", std::string("tcp://localhost:") + port,
                                 "--", "true"}),
                     {"port of 1 to 65535", port});
  }
  // Another group may meet in the same folder.
  expect_bad_input(contextile({"launch", "-n", "2", "--ranks", "4", "--rendezvous",
                               "file://" + path(""), "--", "true"}),
                   {"expected --run-id", "another for every group"});
}

TEST_F(Launch, MoreRanksThanAMachineBearsAreRefused) {
  expect_bad_input(contextile({"launch", "-n", "1000000", "--", "true"}),
                   {"-n: expected at most 4096 ranks", "found 1000000"});
  expect_bad_input(bash("ulimit -u 2000 2>/dev/null\ncontextile launch -n 3000 -- true\n"),
                   {"-n: expected at most", "ulimit -u", "found 3000"});
}

TEST_F(Launch, SaysOnceWhatIsWrongWithTheCommandOfItsRanks) {
  const std::string plan = small_plan("p.plan");
  const auto launched = [&](const std::vector<std::string>& run) {
    return contextile(joined({"launch", "-n", "3", "--"}, run));
  };
  expect_bad_input(launched({"run", plan}),
                   {"-n: expected 4 ranks, one for each device of " + plan + ", found 3"});
  expect_bad_input(launched({"run", plan, "--transport", "mpi"}),
                   {"run: expected --transport gloo", "mpirun", "'mpi'"});
  expect_bad_input(launched({"run", plan, "--run-id", "x"}), {"expected no --run-id", "'x'"});
  expect_bad_input(launched({"profile", "--ranks", "4"}), {"expected no --ranks", "'4'"});
  expect_bad_input(launched({"serve", "--store", "memory:"}),
                   {"expected no --store", "launch ends all when one fails"});
  expect_bad_input(launched({"run", "-"}), {"expected a plan file", "'-'"});
  expect_bad_input(launched({"run", path("no.plan")}), {"no.plan: cannot read"});
  expect_bad_input(launched({"run", plan, "--repeets", "2"}), {"--repeets", "'--repeats'"});
  expect_bad_input(contextile({"launch", "-n", "2", "--ranks", "3", "--rendezvous",
                               "tcp://localhost:1", "--", "run", plan}),
                   {"--ranks: expected 4 ranks", "found 3"});
}

TEST_F(Launch, RankZeroSaysForAnMpiJobThatItHasAnotherSizeThanThePlan) {
  if (!has("mpi")) GTEST_SKIP() << "built without MPI (libopenmpi-dev)";
  const std::string mpirun =
      "export OMPI_MCA_btl_tcp_if_include=lo\ntimeout -k 5 120 mpirun --allow-run-as-root "
      "--oversubscribe -n 2 ";
  if (bash(mpirun + "true\n").exit_code != 0) {
    GTEST_SKIP() << "needs an mpirun that starts processes here (openmpi-bin)";
  }
  const Outcome outcome =
      bash(mpirun + CONTEXTILE_PROGRAM + " run " + small_plan("p.plan") + " --transport mpi\n");
  EXPECT_EQ(outcome.exit_code, 2);
  const std::string said =
      "contextile: error: --transport mpi: expected 4 processes, one for each "
      "device of the plan, found 2\n";
  const std::size_t at = outcome.err.find(said);
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("contextile: error", at + 1), std::string::npos) << outcome.err;
}

TEST_F(Launch, OptionsOfAnotherTransportAreRefused) {
  const std::string plan = small_plan("p.plan");
  expect_bad_input(contextile({"run", plan, "--rank", "0"}), {"--transport gloo", "inproc"});
  if (!has("gloo")) return;
  expect_bad_input(contextile({"run", plan, "--transport", "gloo"}), {"--rank", "launch"});
  expect_bad_input(contextile({"profile", "--transport", "gloo", "--rank", "0"}), {"--ranks"});
  expect_bad_input(contextile({"run", plan, "--transport", "gloo", "--rank", "4"}),
                   {"--rank: expected 0 to 3, one for each device of the plan, found 4"});
  expect_bad_input(contextile({"run", plan, "--transport", "gloo", "--rank", "0", "--predict"}),
                   {"--predict", "--cluster"});
}

}  // namespace
}  // namespace contextile
