// redline check on a card: every part of the card is looked at, and works.
#include "cli/program.h"
#include "io/json.h"
#include "testing/on_card.h"

namespace redline::cli {
namespace {

class CheckOnCard : public testing::OnCard<ProgramTest> {};

TEST_F(CheckOnCard, EveryPartOfTheCardWorks) {
  const Ran ran = run({"check", "--device", "cuda", "--json"});
  ASSERT_EQ(ran.status, kDone) << ran.out << ran.err;
  const io::Json told = io::parse_json(ran.out, "stdout");
  std::string states;
  for (const io::Json& row : told["parts"])
    states += row["part"].get<std::string>() + " " + row["state"].get<std::string>() + "\n";
  EXPECT_TRUE(says(
      states, {"cuda: oracle works", "cuda: training works", "cuda: resume works", "cuda: rates ", "cuBLASLt works"}));
  EXPECT_EQ(states.find("failed"), states.npos) << ran.out;
  if (told["info"]["nccl"]["usable"].get<bool>()) {
    EXPECT_TRUE(says(states, "nccl works")) << ran.out;
  }
  EXPECT_LT(told["seconds"].get<double>(), 60) << "it is a self-test of a minute";
}

}  // namespace
}  // namespace redline::cli
