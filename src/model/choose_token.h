// Chooses the next token: the likeliest, or one drawn from the model's distribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace redline::model {

struct ChoiceOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // only among the k likeliest; 0: among all
  double top_p = 1;          // of those, only among the fewest that hold this share of the probability
};

// Holds the memory that a choice needs.
class TokenChooser {
 public:
  // `u` in [0, 1) decides. Ties go to the lower id. A token whose logit is not finite is chosen only where no logit is
  // finite.
  std::int32_t choose(std::span<const float> logits, const ChoiceOptions& options, double u);

 private:
  void keep_likeliest(std::size_t count);
  void keep_share(double share);

  struct Candidate {
    std::int32_t id;
    float logit;
  };
  static bool likelier(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace redline::model
