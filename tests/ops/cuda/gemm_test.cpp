// Products on a card agree with the CPU's on the same (rounded) operands, for all transposes, types and odd extents;
// they write C alone, repeat to the bit, and what was tuned is kept on disk.
#include "ops/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "ops/cpu/gemm.h"
#include "ops/cuda/gemm_tuning.h"
#include "testing/failing_files.h"
#include "testing/on_card.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::ops::cuda {
namespace {

// The tuning cache of this process, set before the first product reads it.
const testing::TempFolder kCache;
[[maybe_unused]] const int kCacheIsSet = ::setenv("XDG_CACHE_HOME", kCache.path().c_str(), 1);

float rounded_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}

struct Types {
  DType input, output;
  bool tf32;
  double tolerance;  // of a usual entry
  double rounding;   // of the entry itself
};
// Rounding to bf16 moves an entry by up to 2^-8 of itself.
constexpr Types kTypes[] = {{DType::f32, DType::f32, false, 1e-5, 1e-5},
                            {DType::f32, DType::f32, true, 3e-3, 3e-3},
                            {DType::bf16, DType::f32, false, 1e-4, 1e-4},
                            {DType::bf16, DType::bf16, false, 1e-3, 0x1p-8}};

// [rows, ld] of random numbers that the type can hold, on the host and on the card.
class Matrix {
 public:
  Matrix(device::Device& card, DType type, std::int64_t rows, std::int64_t ld, std::uint64_t stream)
      : type_(type), values(static_cast<std::size_t>(rows * ld)) {
    const Random random(11, stream);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto x = static_cast<float>(2 * random.uniform(i) - 1);
      values[i] = type == DType::bf16 ? rounded_to_bf16(x) : x;
    }
    const auto size = size_of(type);
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[i]) >> (type == DType::bf16 ? 16 : 0);
      std::memcpy(bytes.data() + i * size, &bits, size);  // little-endian
    }
    memory_ = card.allocate(static_cast<std::int64_t>(bytes.size()));
    card.copy_in(memory_->data(), bytes.data(), memory_->bytes());
  }
  void* data() const { return memory_->data(); }
  std::vector<float> read(device::Device& card) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(memory_->bytes()));
    card.copy_out(bytes.data(), memory_->data(), memory_->bytes());
    std::vector<float> out(values.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * size_of(type_), size_of(type_));
      out[i] = std::bit_cast<float>(bits << (type_ == DType::bf16 ? 16 : 0));
    }
    return out;
  }

 private:
  DType type_;
  std::unique_ptr<device::Buffer> memory_;

 public:
  std::vector<float> values;
};

class GemmOnCard : public testing::OnCard<> {
 protected:
  struct Case {
    std::int64_t m, n, k;
    bool transpose_a = false, transpose_b = true;
    float beta = 0;
    std::int64_t padding = 0;   // of leading dimensions
    std::int64_t multiple = 1;  // which they are of
    std::int64_t ld(std::int64_t columns) const { return (columns + padding + multiple - 1) / multiple * multiple; }
  };

  // Runs it on both and compares; returns what the card wrote.
  std::vector<float> expect_agreement(const Case& c, const Types& t) {
    const std::int64_t lda = c.ld(c.transpose_a ? c.m : c.k), ldb = c.ld(c.transpose_b ? c.k : c.n), ldc = c.ld(c.n);
    const Matrix a(card(), t.input, c.transpose_a ? c.k : c.m, lda, 1);
    const Matrix b(card(), t.input, c.transpose_b ? c.n : c.k, ldb, 2);
    const Matrix out(card(), t.output, c.m, ldc, 3);
    gemm({c.transpose_a,
          c.transpose_b,
          c.m,
          c.n,
          c.k,
          a.data(),
          lda,
          b.data(),
          ldb,
          out.data(),
          ldc,
          t.input,
          t.input,
          t.output,
          nullptr,
          nullptr,
          c.beta,
          {.math = t.tf32 ? Math::tf32 : Math::full}},
         card().launch());

    std::vector<float> want = out.values;
    const auto cpu = [](bool transpose) { return transpose ? cpu::Transpose::yes : cpu::Transpose::no; };
    cpu::gemm({cpu(c.transpose_a), cpu(c.transpose_b), c.m, c.n, c.k, a.values.data(), lda, b.values.data(), ldb,
               want.data(), ldc, 1, c.beta},
              pool_);
    const std::vector<float> got = out.read(card());
    const double usual = std::sqrt(static_cast<double>(c.k)) / 3;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool inside = static_cast<std::int64_t>(i) % ldc < c.n;
      // The library may round a product before it adds C: an error of the product's size, not of the sum's. It adds
      // with beta, and where K is cut.
      const bool adds = c.beta != 0 || (c.multiple > 1 && c.k % c.multiple != 0);
      const double entry = std::abs(static_cast<double>(want[i])), rounded = adds ? 2 * entry + 4 * usual : entry;
      const double allowed = inside ? t.tolerance * usual + t.rounding * rounded : 0;
      if (std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) <= allowed) continue;
      ADD_FAILURE() << c.m << "x" << c.n << "x" << c.k << " transposed " << c.transpose_a << c.transpose_b << " "
                    << name_of(t.input) << ">" << name_of(t.output) << " tf32 " << t.tf32 << " beta " << c.beta
                    << " padding " << c.padding << ": [" << i << "] is " << got[i] << ", expected " << want[i];
      break;
    }
    return got;
  }

  ThreadPool pool_{2};
};

TEST_F(GemmOnCard, AgreesWithTheCpu) {
  for (const Case& extents : {Case{1, 1, 1}, Case{7, 5, 3}, Case{64, 128, 64}, Case{33, 267, 129}, Case{267, 96, 251},
                              Case{1, 256, 512}, Case{300, 1, 40}}) {
    for (const Types& types : kTypes)
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true})
          for (const float beta : {0.0f, 1.0f})
            for (const std::int64_t padding : {0, 3})
              expect_agreement({extents.m, extents.n, extents.k, transpose_a, transpose_b, beta, padding}, types);
  }
}

// As linears have them: forward, gradient of the input, gradient of the weight.
TEST_F(GemmOnCard, TunedProductsAgreeRepeatAndAreKept) {
  for (const Types& types : kTypes) {
    for (const auto& [transpose_a, transpose_b] : {std::pair{false, true}, {false, false}, {true, false}}) {
      const Case c{1024, 768, 1024, transpose_a, transpose_b, 1.0f};
      EXPECT_EQ(expect_agreement(c, types), expect_agreement(c, types));
    }
  }
  keep_tuning(card().launch());
  const std::string text = real_files().read(kCache / "redline/tuning.json");
  EXPECT_TRUE(testing::says(text, {"1024x768x1024 TN bf16>f32 +=", card().name()}));
}

// Extents of 1,025 and 1,030 in rows that begin at 16 bytes: each is cut, alone and with the others.
TEST_F(GemmOnCard, LargeProductsOfOddExtentsAgree) {
  for (const Case& extents :
       {Case{1024, 1025, 512}, Case{1030, 1024, 512}, Case{1024, 512, 1025}, Case{1030, 1025, 515}})
    for (const Types& types : kTypes)
      for (const auto& [transpose_a, transpose_b] :
           {std::pair{false, true}, {false, false}, {true, false}, {true, true}})
        for (const float beta : {0.0f, 1.0f})
          expect_agreement({extents.m, extents.n, extents.k, transpose_a, transpose_b, beta, 0, 8}, types);
}

// The three products of a chunk of a head, its logits in rows of whole vectors. Uncut they take 4 times as long and
// more (docs/experiments.md).
TEST_F(GemmOnCard, AnOddVocabularyIsAsFastAsAnEvenOne) {
  const auto seconds = [&](std::int64_t vocab) {
    constexpr std::int64_t kRows = 4096, kWidth = 1024, kStride = 50264;
    const Gemm logits{
        .transpose_b = true, .m = kRows, .n = vocab, .k = kWidth, .lda = kWidth, .ldb = kWidth, .ldc = kStride};
    const Gemm dx{.m = kRows, .n = kWidth, .k = vocab, .lda = kStride, .ldb = kWidth, .ldc = kWidth};
    const Gemm dweight{
        .transpose_a = true, .m = vocab, .n = kWidth, .k = kRows, .lda = kStride, .ldb = kWidth, .ldc = kWidth};
    std::array<double, 3> times{};
    std::ranges::transform(std::array{logits, dx, dweight}, times.begin(),
                           [&](const Gemm& g) { return time_of(g, card().launch()).seconds; });
    return times;
  };
  const auto odd = seconds(50257), even = seconds(50256);
  for (const std::size_t i : {0, 1, 2}) {
    EXPECT_LT(odd[i], 1.5 * even[i]) << i;
    EXPECT_GT(odd[i], 0) << i;
  }
}

TEST_F(GemmOnCard, OperandsNeedOnlyTheAlignmentOfTheirElements) {
  const Matrix a(card(), DType::bf16, 65, 64, 1), b(card(), DType::bf16, 33, 64, 2), c(card(), DType::f32, 65, 32, 3);
  const auto after_first = [](const Matrix& m, std::size_t size) { return static_cast<std::byte*>(m.data()) + size; };
  const Gemm g{.transpose_b = true,
               .m = 64,
               .n = 32,
               .k = 64,
               .a = after_first(a, 2),
               .lda = 64,
               .b = after_first(b, 2),
               .ldb = 64,
               .c = after_first(c, 4),
               .ldc = 32,
               .input = DType::bf16,
               .input_b = DType::bf16,
               .output = DType::f32};
  gemm(g, card().launch());
  std::vector<float> want = c.values;
  cpu::gemm({cpu::Transpose::no, cpu::Transpose::yes, 64, 32, 64, a.values.data() + 1, 64, b.values.data() + 1, 64,
             want.data() + 1, 32},
            pool_);
  const std::vector<float> got = c.read(card());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3) << i;
}

// Addresses say only how operands are aligned: none of these is looked at.
Gemm product_of(DType input, std::int64_t m, std::int64_t n, std::int64_t k) {
  static constexpr float kScale = 1;
  Gemm g{.transpose_b = true, .m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = n, .input = input, .input_b = input};
  if (is_fp8(input)) g.a_scale = g.b_scale = &kScale;
  return g;
}

TEST_F(GemmOnCard, SaysHowLongAProductTakes) {
  for (const std::int64_t extent : {64, 1024, 2048}) {  // not worth tuning, and worth it
    const ProductTime time = time_of(product_of(DType::bf16, extent, extent, extent), card().launch());
    EXPECT_EQ(time.problem, "");
    EXPECT_GT(time.seconds, 0) << extent;
    EXPECT_LT(time.seconds, 1e-2) << extent;
    EXPECT_EQ(time_of(product_of(DType::bf16, extent, extent, extent), card().launch()).seconds, time.seconds)
        << "it is timed once";
  }
  EXPECT_EQ(time_of(product_of(DType::bf16, 512, 512, 512), card().launch(), false).seconds, 0);
}

TEST_F(GemmOnCard, SaysWhyAProductCannotBeComputed) {
  if (!device::has_fp8(card().launch().major, card().launch().minor)) GTEST_SKIP() << "no fp8";
  EXPECT_EQ(time_of(product_of(DType::e4m3, 256, 256, 256), card().launch(), false).problem, "");
  const ProductTime fp8 = time_of(product_of(DType::e4m3, 2048, 2048, 2048), card().launch());
  EXPECT_GT(fp8.seconds, 0) << fp8.problem;
  for (const bool timed : {false, true}) {  // rows of 250 bytes
    const ProductTime odd = time_of(product_of(DType::e4m3, 256, 256, 250), card().launch(), timed);
    EXPECT_TRUE(testing::says(odd.problem, {"no algorithm", "256x256x250"}));
    EXPECT_EQ(odd.seconds, 0);
  }
}

constexpr TunedProduct kOne = {{1, 2, 0xFFFFFFFFFFFFFFFF, 4, 5, 6, 7, 8}, 1.25e-4}, kTwo = {{9}, 0.1};

class TuningFileTest : public ::testing::Test {
 protected:
  TuningFile open() { return {real_files(), path_}; }
  testing::TempFolder folder_;
  const Path path_ = folder_ / "redline/tuning.json";
};

TEST_F(TuningFileTest, IsKept) {
  TuningFile file = open();
  EXPECT_EQ(file.find("a"), std::nullopt);
  file.put("a", kOne);
  EXPECT_EQ(file.find("a"), kOne);
  EXPECT_EQ(open().find("a"), std::nullopt);  // not saved yet
  file.save();
  EXPECT_EQ(open().find("a"), kOne);
}

TEST_F(TuningFileTest, OfTwoRunsIsKeptOfBoth) {
  TuningFile first = open(), second = open();
  first.put("a", kOne);
  second.put("b", kTwo);
  first.save();
  second.save();
  EXPECT_EQ(open().find("a"), kOne);
  EXPECT_EQ(open().find("b"), kTwo);
}

TEST_F(TuningFileTest, OfManyRunsThatEndAtOnceIsKeptOfAll) {
  constexpr int kRuns = 8, kSaves = 10;
  const auto key = [](int run, int save) { return std::to_string(run) + "x" + std::to_string(save); };
  std::vector<std::thread> runs;
  for (int run = 0; run < kRuns; ++run) {
    runs.emplace_back([&, run, file = open()]() mutable {
      for (int save = 0; save < kSaves; ++save) {
        file.put(key(run, save), kOne);
        file.save();
      }
    });
  }
  for (std::thread& run : runs) run.join();
  const TuningFile file = open();
  for (int run = 0; run < kRuns; ++run)
    for (int save = 0; save < kSaves; ++save) EXPECT_EQ(file.find(key(run, save)), kOne) << key(run, save);
}

TEST_F(TuningFileTest, ThatCannotBeReadIsIgnoredAndReplaced) {
  real_files().create_folders(path_.parent_path());
  const auto with = [](const std::string& product) { return R"({"format": 2, "products": {"a": )" + product + "}}"; };
  const auto algorithm = [](char digit) { return "\"" + std::string(128, digit) + "\""; };
  const std::string whole = with(R"({"algorithm": )" + algorithm('0') + R"(, "seconds": 0.5})");
  const std::string earlier = R"({"format": 1, "products": {"a": )" + algorithm('0') + "}}";
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("{\"format\": 2}"),
                                  earlier, whole.substr(0, 60), with("\"12\""), with("3"), with(algorithm('0')),
                                  with(R"({"algorithm": )" + algorithm('0') + "}"),
                                  with(R"({"algorithm": )" + algorithm('x') + R"(, "seconds": 0.5})"),
                                  with(R"({"algorithm": )" + algorithm('0') + R"(, "seconds": "soon"})")}) {
    real_files().replace(path_, text);
    int warnings = 0;
    const log::Listener listener([&](bool warning, std::string_view) { warnings += warning ? 1 : 0; });
    TuningFile file = open();
    EXPECT_EQ(file.find("a"), std::nullopt) << text;
    file.put("b", kTwo);
    file.save();
    EXPECT_EQ(warnings, text == earlier ? 0 : 1) << text;  // another redline's is no damage
    EXPECT_EQ(open().find("b"), kTwo) << text;
  }
  real_files().replace(path_, whole);
  EXPECT_EQ(open().find("a"), (TunedProduct{{}, 0.5}));
}

TEST_F(TuningFileTest, ThatCannotBeWrittenIsNoError) {
  for (std::int64_t at = 0; at < 8; ++at) {
    testing::FailingFiles files;
    files.fail_at(at, testing::Failure::full_disk);
    TuningFile file(files, path_);
    file.put("a", kOne);
    EXPECT_NO_THROW(file.save());
    EXPECT_EQ(file.find("a"), kOne);
  }
}

TEST_F(TuningFileTest, WithoutAPathKeepsNothing) {
  TuningFile file(real_files(), {});
  file.put("a", kOne);
  EXPECT_NO_THROW(file.save());
  EXPECT_EQ(file.find("a"), kOne);
}

}  // namespace
}  // namespace redline::ops::cuda
