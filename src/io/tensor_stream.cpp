// Cuts the file into windows and each window's tensors into pieces for the threads; one of them hashes meanwhile.
#include "io/tensor_stream.h"

#include <algorithm>
#include <vector>

#include "base/hash.h"

namespace redline::io {
namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // bytes that one thread converts at a time
constexpr int kAhead = 4;                               // windows that the disk may be ahead

class Stream {
 public:
  Stream(const TensorStream& stream, const PlacePiece& place, const PiecesDone& done)
      : s_(stream), place_(place), done_(done), bytes_(stream.file.file().bytes()) {}

  void run() {
    const auto size = static_cast<std::int64_t>(bytes_.size());
    for (int i = 0; i < kAhead; ++i) s_.file.file().will_need(window(i * kStreamWindow));
    for (std::int64_t begin = 0; begin < size; begin += kStreamWindow) {
      const std::span<const std::byte> now = window(begin);
      cut(begin + static_cast<std::int64_t>(now.size()));
      convert(now, window(begin + kAhead * kStreamWindow));
      if (!pieces_.empty()) done_(pieces_);
      s_.file.file().done_with(now);
    }
    if (s_.hash && hex64(hasher_.digest()) != *s_.hash)
      fail_user("{} has changed: its hash is not the one in the manifest", s_.file.path().string());
  }

 private:
  std::span<const std::byte> window(std::int64_t begin) const {
    const auto size = static_cast<std::int64_t>(bytes_.size());
    begin = std::min(begin, size);
    return bytes_.subspan(static_cast<std::size_t>(begin),
                          static_cast<std::size_t>(std::min(kStreamWindow, size - begin)));
  }

  // The pieces whose bytes lie before `end` and are not done yet.
  void cut(std::int64_t end) {
    pieces_.clear();
    targets_.clear();
    while (next_ < s_.wanted.size()) {
      const StoredTensor& t = *s_.wanted[next_];
      const auto element = static_cast<std::int64_t>(size_of(t.dtype));
      const std::int64_t begin = t.bytes.data() - bytes_.data();
      const std::int64_t whole = std::min(t.elements(), std::max<std::int64_t>((end - begin) / element, 0));
      while (first_ < whole) {
        const TensorPiece piece{next_, first_, std::min(kPiece / element, whole - first_)};
        pieces_.push_back(piece);
        targets_.push_back(place_(piece));
        first_ += piece.count;
      }
      if (first_ < t.elements()) return;
      ++next_;
      first_ = 0;
    }
  }

  // Asking for what comes later is work too: the system finds room for it meanwhile.
  void convert(std::span<const std::byte> now, std::span<const std::byte> later) {
    const std::int64_t others = s_.hash ? 2 : 1;
    s_.pool.run(static_cast<std::int64_t>(pieces_.size()) + others, [&](std::int64_t i) {
      if (i == 0) return s_.file.file().will_need(later);
      if (i < others) return hasher_.update(now);
      const auto at = static_cast<std::size_t>(i - others);
      const TensorPiece& piece = pieces_[at];
      try {
        s_.wanted[piece.index]->convert(piece.first, piece.count, s_.to, targets_[at]);
      } catch (const UserError& e) {
        fail_user("{}: {}", s_.file.path().string(), e.what());
      }
    });
  }

  const TensorStream& s_;
  const PlacePiece& place_;
  const PiecesDone& done_;
  std::span<const std::byte> bytes_;
  Hasher hasher_;
  std::size_t next_ = 0;    // of wanted: the one that is under way
  std::int64_t first_ = 0;  // its elements before it are done
  std::vector<TensorPiece> pieces_;
  std::vector<std::byte*> targets_;
};

}  // namespace

void stream_tensors(const TensorStream& stream, const PlacePiece& place, const PiecesDone& done) {
  Stream(stream, place, done).run();
}

}  // namespace redline::io
