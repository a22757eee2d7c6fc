// The seconds that measuring on a card may take at a start, at any shape: 10 where nothing is known of it yet, 3 where
// the tuning cache knows its products.
#pragma once

#include <cmath>

#include "base/budget.h"

namespace redline::ops::cuda {

inline constexpr double kTuningBudget = 7, kAttentionBudget = 3;

// One a card (CardObjects); begin_budgets() begins anew.
struct StartBudgets {
  Budget products{kTuningBudget}, attention{kAttentionBudget};
  Budget choosing{INFINITY};  // all that the choices of attention took, plans and first loads included
};

}  // namespace redline::ops::cuda
