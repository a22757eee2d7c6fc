// Objects that other rooms keep for as long as a card is open, one a type: plans of products, choices that were
// measured. They go with the card.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <typeindex>

namespace redline::device::cuda {

class CardObjects {
 public:
  // The one T of this card, made when it is first asked for.
  template <class T>
  T& of() {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& thing = things_[typeid(T)];
    if (!thing) thing = std::make_shared<T>();
    return *static_cast<T*>(thing.get());
  }

 private:
  std::mutex mutex_;
  std::map<std::type_index, std::shared_ptr<void>> things_;
};

}  // namespace redline::device::cuda
