// The block function of SHA-256 with the x86 SHA instructions.
#include "base/sha256_blocks.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

namespace dgemma {

namespace {

// Four rounds: the state's two halves as the instructions want them (ABEF and CDGH), four message words with
// their round constants added.
__attribute__((target("sha,sse4.1"))) inline void four_rounds(__m128i& abef, __m128i& cdgh, __m128i words) {
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
}

// The next four message words, from the sixteen before them.
__attribute__((target("sha,sse4.1"))) inline __m128i next_words(__m128i w0, __m128i w1, __m128i w2,
                                                                __m128i w3) {
    const __m128i near = _mm_sha256msg1_epu32(w0, w1);
    return _mm_sha256msg2_epu32(_mm_add_epi32(near, _mm_alignr_epi8(w3, w2, 4)), w3);
}

__attribute__((target("sha,sse4.1"))) void take_with_sha_instructions(std::uint32_t* state,
                                                                      const unsigned char* blocks,
                                                                      std::size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const auto* own = reinterpret_cast<const __m128i*>(state);
    // abcd, efgh in memory -> abef, cdgh, highest word first.
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(own), 0xB1);
    const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(own + 1), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, hgfe, 8);
    __m128i cdgh = _mm_blend_epi16(hgfe, cdab, 0xF0);
    const auto* constants = reinterpret_cast<const __m128i*>(sha256_round_constants.data());
    for (; count > 0; --count, blocks += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        const auto* message = reinterpret_cast<const __m128i*>(blocks);
        __m128i w[4];
        for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(_mm_loadu_si128(message + i), swap);
        for (int i = 0; i < 16; ++i) {
            four_rounds(abef, cdgh, _mm_add_epi32(w[i % 4], _mm_loadu_si128(constants + i)));
            if (i < 12) w[i % 4] = next_words(w[i % 4], w[(i + 1) % 4], w[(i + 2) % 4], w[(i + 3) % 4]);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    auto* out = reinterpret_cast<__m128i*>(state);
    _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha_instructions() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & 1u << 29) != 0;
}

}  // namespace

Sha256Blocks sha256_instructions() { return has_sha_instructions() ? take_with_sha_instructions : nullptr; }

}  // namespace dgemma

#else

namespace dgemma {
Sha256Blocks sha256_instructions() { return nullptr; }
}  // namespace dgemma

#endif
