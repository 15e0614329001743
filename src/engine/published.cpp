#include "engine/published.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/difference.h"
#include "model/synthetic.h"

namespace dgemma::engine {

namespace {

// Both of contract/goldens.md A.
constexpr std::int32_t kThinkingOff[] = {
    2,      105, 2364, 107, 6974, 496, 1440, 20494, 1003, 23613,
    236761, 106, 107,  105, 4368, 107, 100,  45518, 107,  101,
};

constexpr std::int32_t kThinkingOn[] = {
    2,   105,  9731,  107,  98,    107,    106, 107, 105, 2364, 107, 6974,
    496, 1440, 20494, 1003, 23613, 236761, 106, 107, 105, 4368, 107,
};

// B.
constexpr PublishedRow kThirtyLayers[] = {
    {0,
     {4.12986183f, 20.66659164f, 6.75712347f, 4.16051483f, 13.11566544f, 3.59206009f, 3.46879172f,
      3.86895919f, 3.14465618f, 2.47871161f, 4.43598938f, 4.77164030f}},
    {1,
     {3.20645595f, 22.52679825f, 7.78647614f, 2.71133161f, 14.73279667f, 4.55818033f, 4.16051483f,
      3.03644228f, 3.91504526f, 1.58446193f, 4.52764702f, 4.46655130f}},
    {2,
     {4.77164030f, 23.55075455f, 5.80103159f, 3.65364885f, 15.66178513f, 4.19115925f, 5.01498747f,
      2.92814803f, 4.55818033f, 2.92814803f, 5.28794241f, 7.87383986f}},
    {3,
     {4.64972258f, 24.27903175f, 6.01130199f, 3.66904116f, 15.57065392f, 3.17555952f, 5.25765753f,
      3.40711212f, 4.95421267f, 4.28303957f, 5.71073294f, 8.10610390f}},
    {4,
     {5.16673803f, 24.27903175f, 6.42998266f, 3.36083388f, 16.89584923f, 4.49710369f, 5.77094412f,
      4.40541792f, 5.22736216f, 4.12986183f, 7.05306482f, 8.68214703f}},
    {5,
     {5.28794241f, 24.36471176f, 7.58207989f, 3.53044105f, 17.31759644f, 4.49710369f, 5.31821585f,
      4.40541792f, 4.98460531f, 3.88432312f, 7.46494198f, 8.33732700f}},
    {6,
     {5.10607004f, 24.27903175f, 7.17103910f, 3.34540391f, 16.55123901f, 3.96111226f, 4.09919930f,
      4.25242186f, 4.34424734f, 4.46655130f, 5.71073294f, 8.27962112f}},
    {7,
     {6.81642532f, 24.19219208f, 8.56747913f, 5.37872887f, 17.15010071f, 5.80103159f, 5.86117029f,
      4.25242186f, 6.34047985f, 4.49710369f, 7.61132526f, 9.36425304f}},
    {8,
     {6.99399042f, 24.44923782f, 8.96760273f, 5.34847832f, 16.81029892f, 5.77094412f, 4.95421267f,
      4.49710369f, 5.68060923f, 4.68021679f, 6.93485880f, 8.85363007f}},
    {9,
     {7.93200207f, 23.83295822f, 7.81561375f, 6.51936626f, 17.72932053f, 5.98130083f, 5.83110666f,
      5.43919706f, 6.60862780f, 5.28794241f, 7.66977119f, 9.86893463f}},
};

// D.
constexpr PublishedRow kSixLayers[] = {
    {0,
     {20.99029922f, -29.92623520f, -3.96111226f, 29.14220428f, 29.95949554f, 28.15386963f, 27.72417641f,
      1.10106778f, -27.28695297f, -29.00568390f, -1.60783303f, -18.21017647f}},
    {1,
     {29.49378586f, 17.06575012f, 25.72111511f, 29.87012291f, 29.99975395f, -17.31759644f, -29.92115784f,
      -20.06009483f, -14.73279667f, -28.84785843f, -29.78616714f, -29.99817467f}},
    {2,
     {-1.54550576f, -29.99688721f, -29.98895645f, 26.56055069f, 13.76502132f, -24.44923782f, -4.55818033f,
      -17.40074539f, -29.42227936f, -29.94157219f, -25.58675003f, -29.89002419f}},
    {3,
     {-1.14787686f, -29.44104195f, 16.55123901f, 26.77043152f, 29.86572838f, 13.56690025f, 21.36647987f,
      -10.31235313f, -29.22277641f, -28.15386963f, 2.49422908f, -24.27903175f}},
    {4,
     {28.09328270f, -28.88492966f, 27.24345016f, 29.90688133f, 29.90688133f, 18.13103485f, 27.99878311f,
      4.00716066f, -24.53262520f, -28.88492966f, 24.44923782f, -22.52679825f}},
    {5,
     {0.10205039f, -29.93098831f, 7.55281830f, 28.48003769f, 29.93098831f, -14.25369835f, 21.11716843f,
      -19.27641296f, -29.42227936f, -29.02185059f, 8.16400814f, -27.41356468f}},
    {6,
     {22.19349098f, -27.10892868f, -24.10417366f, 27.37199974f, 26.82098389f, -10.03579903f, 4.71070147f,
      -16.46408844f, -29.68155670f, -25.30630493f, 24.77605438f, 1.80251384f}},
    {7,
     {20.73208427f, -29.44104195f, 17.97154999f, 29.67082214f, 29.82481384f, -9.47692776f, 26.77043152f,
      -12.86174679f, -29.40289116f, -29.44104195f, 4.77164030f, -22.13672829f}},
    {8,
     {7.81561375f, -29.63641167f, 15.66178513f, 29.14220428f, 29.40289116f, -15.93279934f, 28.37808609f,
      -13.11566544f, -28.35157776f, -29.76376724f, -7.49424887f, -19.20282745f}},
    {9,
     {17.72932053f, -29.98895645f, 29.31869316f, 29.31869316f, 29.69194221f, -25.00963974f, 7.58207989f,
      -28.12381363f, -29.51024628f, -29.93098831f, -25.58675003f, -26.87078667f}},
};

// D, in brackets: the same on another maker's card.
constexpr PublishedRow kSixLayersElsewhere[] = {
    {0,
     {21.18004799f, -29.92373848f, -3.05190611f, 29.14220428f, 29.96082115f, 28.18346024f, 27.83115768f,
      0.69128382f, -27.28695488f, -28.98925400f, -0.99962980f, -17.81046677f}},
    {5,
     {2.86623120f, -29.89710236f, 5.16673756f, 28.57573891f, 29.90688133f, -13.76502132f, 21.11716843f,
      -18.82897186f, -29.38286209f, -29.12799644f, 4.98460531f, -27.57362747f}},
    {8,
     {8.73937702f, -29.52617455f, 14.54231644f, 29.24793625f, 29.36216545f, -16.72434616f, 28.72925377f,
      -11.98154259f, -28.32464409f, -29.70199013f, -5.98130035f, -17.72932053f}},
};

constexpr PublishedPrompt kPrompts[] = {{false, kThinkingOff}, {true, kThinkingOn}};
constexpr int kCanvas = 256;

// Before the softcap. In f32 the cap takes what is large to c itself, which has no inverse.
double before_cap(double z) {
    constexpr double c = kPublishedSoftcap;
    const double most = 1 - 1.0 / (1 << 24);
    return c * std::atanh(std::clamp(z / c, -most, most));
}

bool alike(const model::LayerConfig& a, const model::LayerConfig& b) {
    return a.kind == b.kind && a.head_dim == b.head_dim && a.kv_heads == b.kv_heads;
}

}  // namespace

std::span<const PublishedPrompt> published_prompts() { return kPrompts; }

const PublishedLogits* published_logits(int layers) {
    static const PublishedLogits all[] = {{30, kThirtyLayers, {}}, {6, kSixLayers, kSixLayersElsewhere}};
    for (const PublishedLogits& one : all) {
        if (one.layers == layers) return &one;
    }
    return nullptr;
}

bool has_published_shapes(const model::Config& config, const files::Checkpoint& checkpoint) {
    if (checkpoint.pack() != nullptr && checkpoint.pack()->manifest().synthetic()) return false;
    const auto json = model::preset_config("26b", 30);
    const auto preset = json ? model::parse_config(*json, "the preset") : Result<model::Config>(json.error());
    if (!preset) return false;
    const model::TextConfig &a = config.text, &b = preset->text;
    return a.vocab_size == b.vocab_size && a.hidden_size == b.hidden_size &&
           a.intermediate_size == b.intermediate_size && a.heads == b.heads &&
           a.sliding_window == b.sliding_window && a.experts == b.experts && a.top_k == b.top_k &&
           a.expert_size == b.expert_size && config.canvas_length == kCanvas &&
           a.final_softcap == kPublishedSoftcap &&
           std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), alike);
}

LogitComparison compare_logits(std::span<const float> got, std::span<const PublishedRow> rows) {
    Difference capped, before;
    std::size_t at = 0;
    for (const PublishedRow& row : rows) {
        for (const float want : row.logits) {
            const double z = at < got.size() ? got[at] : NAN;
            ++at;
            capped.add(z, want);
            if (std::isfinite(z)) before.add(before_cap(z), before_cap(want));
        }
    }
    LogitComparison out;
    out.largest = capped.largest(), out.broken = capped.broken();
    out.relative_rms = before.relative_rms();
    if (out.broken < static_cast<std::int64_t>(at)) out.cosine = before.cosine();
    return out;
}

Result<std::vector<float>> first_pass_logits(LoadedModel& loaded, std::span<const std::int32_t> prompt,
                                             std::span<const std::int32_t> canvas, std::span<const int> rows,
                                             int columns) {
    model::KvCache cache = loaded.new_cache();
    DGEMMA_CHECK(loaded.model->encode(cache, prompt));
    DGEMMA_TRY(const auto logits, loaded.backend->make_logits(static_cast<std::int64_t>(canvas.size()),
                                                              loaded.config.text.vocab_size));
    model::Canvas one{.cache = &cache, .ids = canvas, .temperature = 1, .logits = logits.get()};
    DGEMMA_CHECK(loaded.model->denoise(std::span(&one, 1)));
    std::vector<float> out;
    for (const int row : rows) {
        const auto values = logits->row(row);
        out.insert(out.end(), values.begin(), values.begin() + columns);
    }
    return out;
}

Result<LogitComparison> compare_with_published(const files::Checkpoint& checkpoint, LoadOptions options,
                                               const PublishedLogits& published) {
    options.layers = published.layers;
    DGEMMA_TRY(const std::unique_ptr<LoadedModel> loaded, load_model(checkpoint, options));
    std::vector<std::int32_t> canvas(kCanvas);
    std::iota(canvas.begin(), canvas.end(), 0);
    std::vector<int> rows;
    for (const PublishedRow& row : published.rows) rows.push_back(row.row);
    DGEMMA_TRY(const std::vector<float> got,
               first_pass_logits(*loaded, kThinkingOff, canvas, rows, kPublishedColumns));
    return compare_logits(got, published.rows);
}

}  // namespace dgemma::engine
