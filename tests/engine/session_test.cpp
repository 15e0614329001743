// A session's cache after anything that may happen to it is bit for bit what encoding its log anew gives.
#include "engine/session.h"

#include <gtest/gtest.h>

#include "engine/demo_model.h"

namespace dgemma::testing {
namespace {

using engine::Kept;
using engine::Session;

// A model whose window is 16 tokens, so that everything that windows do happens early.
engine::LoadedModel& calm() {
    static const files::Checkpoint checkpoint =
        files::Checkpoint::open(*golden_dir("calm-f32") / "checkpoint").value();
    static const std::unique_ptr<engine::LoadedModel> loaded =
        engine::load_model(checkpoint, {.threads = 1, .prefill_chunk = 24}).value();
    return *loaded;
}

Ids calm_ids(std::size_t count, int seed) {
    Ids ids = filler(count, seed);
    for (std::int32_t& id : ids) id = id % 400 + 60;
    return ids;
}

std::uint64_t encoded(engine::LoadedModel& model, Session& session) {
    EXPECT_TRUE(session.encode_pending(*model.model).ok());
    EXPECT_TRUE(session.pending().empty());
    return session.cache().fingerprint();
}

std::uint64_t fresh_fingerprint(engine::LoadedModel& model, std::span<const std::int32_t> log) {
    Session session(model.new_cache());
    session.begin(log);
    return encoded(model, session);
}

TEST(Session, PrefillsCutAnywhereGiveTheSameCache) {
    const Ids log = calm_ids(100, 1);
    const std::uint64_t whole = fresh_fingerprint(calm(), log);
    for (const std::int64_t cut : {1, 2, 7, 23, 24}) {
        Session session(calm().new_cache());
        session.begin(log);
        while (!session.pending().empty()) {
            const model::Prompt piece = session.next_piece(cut);
            ASSERT_TRUE(calm().model->encode(std::span(&piece, 1)).ok());
        }
        EXPECT_EQ(session.cache().fingerprint(), whole) << cut;
    }
}

TEST(Session, APrefixOfAnyLengthIsReusedExactly) {
    const Ids log = calm_ids(110, 1), other = calm_ids(30, 2);
    int reused = 0, anew = 0;
    for (std::size_t cut = 0; cut <= log.size(); ++cut) {
        Session session(calm().new_cache());
        session.begin(log);
        encoded(calm(), session);
        Ids prompt(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(cut));
        prompt.insert(prompt.end(), other.begin(), other.end());
        const Kept kept = session.begin(prompt);
        ASSERT_EQ(kept.shared, static_cast<std::int64_t>(cut));
        // A ring of 64 slots holds positions 46 to 109; the window before `cut` begins at cut - 15.
        EXPECT_EQ(kept.reused, cut >= 46 + 15 ? kept.shared : 0) << cut;
        EXPECT_EQ(kept.reason.find("window") != std::string::npos, kept.reused < kept.shared) << kept.reason;
        (kept.reused > 0 ? reused : anew) += 1;
        EXPECT_EQ(encoded(calm(), session), fresh_fingerprint(calm(), prompt)) << cut;
    }
    EXPECT_EQ(reused, 50);
    EXPECT_EQ(anew, 61);
}

TEST(Session, ALongerMemoryOfTheRingsRewindsFurther) {
    const Ids log = calm_ids(110, 1);
    Session session(calm().new_cache(64));
    session.begin(log);
    const std::uint64_t whole = encoded(calm(), session);
    const Kept kept = session.rewind(40);
    EXPECT_EQ(kept.reused, 40);
    EXPECT_EQ(session.cache().fingerprint(), fresh_fingerprint(calm(), std::span(log).first(40)));
    EXPECT_TRUE(session.pending().empty());
    session.begin(log);
    EXPECT_EQ(encoded(calm(), session), whole);
}

// Slots that were overwritten before a rewind stay lost after it, whatever the length is then.
TEST(Session, WhatARingLostBeforeARewindStaysLost) {
    const Ids log = calm_ids(110, 1);
    Session session(calm().new_cache());
    session.begin(log);
    encoded(calm(), session);
    EXPECT_EQ(session.rewind(70).reused, 70);
    EXPECT_FALSE(session.cache().can_rewind(60)) << "position 45 was overwritten by position 109";
    EXPECT_TRUE(session.cache().can_rewind(61));
    EXPECT_TRUE(session.cache().can_rewind(0));
    const Kept kept = session.rewind(50);
    EXPECT_EQ(kept.reused, 0);
    EXPECT_EQ(kept.lost, 70);
    EXPECT_EQ(session.pending().size(), 50u) << "to be encoded anew";
    EXPECT_EQ(encoded(calm(), session), fresh_fingerprint(calm(), std::span(log).first(50)));
    EXPECT_TRUE(session.cache().can_rewind(1)) << "a cache begun anew forgets what its rings had lost";
}

TEST(Session, SplicesKeepWhatStandsBeforeThem) {
    const Ids log = calm_ids(60, 1), word = calm_ids(5, 3);
    struct Case {
        std::size_t at, removed;
        Ids inserted;
    };
    for (const Case& c : {Case{50, 10, {}}, Case{40, 3, word}, Case{20, 0, word}, Case{0, 4, {}},
                          Case{60, 0, word}, Case{30, 30, word}}) {
        Session session(calm().new_cache());
        session.begin(log);
        encoded(calm(), session);
        const Kept kept = session.splice(c.at, c.removed, c.inserted);
        EXPECT_EQ(kept.reused, static_cast<std::int64_t>(c.at));
        Ids expected = log;
        const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(c.at);
        expected.erase(begin, begin + static_cast<std::ptrdiff_t>(c.removed));
        expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(c.at), c.inserted.begin(),
                        c.inserted.end());
        EXPECT_EQ(Ids(session.log().begin(), session.log().end()), expected);
        EXPECT_EQ(encoded(calm(), session), fresh_fingerprint(calm(), expected)) << c.at;
    }
}

TEST(Session, AForkGoesItsOwnWay) {
    const Ids log = calm_ids(100, 1), other = calm_ids(40, 2);
    Session trunk(calm().new_cache(32));
    trunk.begin(log);
    const std::uint64_t whole = encoded(calm(), trunk);
    for (const std::int64_t at : {100, 64, 63, 40, 1}) {
        if (!trunk.cache().can_rewind(at)) continue;
        Session branch(calm().new_cache(32));
        ASSERT_TRUE(branch.fork_from(trunk, at).ok());
        EXPECT_EQ(branch.cache().fingerprint(),
                  fresh_fingerprint(calm(), std::span(log).first(static_cast<std::size_t>(at))));
        Ids prompt(log.begin(), log.begin() + at);
        prompt.insert(prompt.end(), other.begin(), other.end());
        branch.begin(prompt);
        EXPECT_EQ(encoded(calm(), branch), fresh_fingerprint(calm(), prompt)) << at;
        EXPECT_EQ(trunk.cache().fingerprint(), whole);
        if (at > 64) {
            EXPECT_EQ(branch.rewind(static_cast<std::size_t>(at) - 20).reused, at - 20)
                << "the copy can be rewound as the first one could";
        }
    }
}

TEST(Session, APassThatFailsLeavesWhatWasThere) {
    const Ids log = calm_ids(90, 1);
    Session session(calm().new_cache());
    session.begin(log);
    const std::uint64_t before = encoded(calm(), session);
    // Written and thrown away: the slots of a chunk that is reserved and not committed.
    ASSERT_TRUE(session.cache().reserve(90 + 24).ok());
    EXPECT_TRUE(session.cache().can_rewind(90));
    EXPECT_EQ(session.cache().fingerprint(), before);
}

TEST(Session, MemoryGrowsByPagesAndIsAccounted) {
    model::KvCache cache = calm().new_cache();
    EXPECT_EQ(cache.bytes(), 0u);
    Session session(std::move(cache));
    for (const std::size_t tokens : {1u, 64u, 65u, 200u}) {
        session.begin(calm_ids(tokens, 1));
        encoded(calm(), session);
        EXPECT_EQ(session.cache().bytes(), session.cache().bytes_for(static_cast<std::int64_t>(tokens)))
            << tokens;
    }
    const std::uint64_t most = session.cache().bytes();
    session.rewind(150);
    session.cache().trim();
    EXPECT_LT(session.cache().bytes(), most);
    session.begin(calm_ids(200, 1));
    EXPECT_EQ(encoded(calm(), session), fresh_fingerprint(calm(), calm_ids(200, 1)));
}

// --- whole turns, on the demo model: its window is 129 tokens, a canvas 128

// Runs a request on a session as the one-call path does, pass by pass.
Told run(Session& session, const engine::Request& request) {
    engine::LoadedModel& demo = demo_model();
    engine::LogitsPool pool(*demo.backend, demo.config.text.vocab_size, 1);
    Told told;
    engine::Reply reply(*demo.model, pool, session, request, engine::check_request(demo, request).value(),
                        told);
    reply.begin(session.begin(request.prompt), engine::Reuse::prefix);
    while (!reply.poll()) {
        if (reply.phase() == engine::Reply::Phase::encode) {
            EXPECT_TRUE(session.encode_pending(*demo.model).ok());
            reply.encoded(0);
        } else {
            model::Canvas canvas = reply.canvas().value();
            EXPECT_TRUE(demo.model->denoise(std::span(&canvas, 1)).ok());
            EXPECT_TRUE(reply.denoised(canvas).ok());
        }
    }
    return told;
}

engine::Request blocks_of(Ids prompt, int tokens) {
    engine::Request r = demo_request();
    r.prompt = std::move(prompt);
    r.max_tokens = tokens;
    r.stop_ids = {2047};  // an id it does not write
    r.diffusion.max_steps = 3;
    return r;
}

// generate, rewind, generate: the same cache and the same ids.
void restores(const engine::Request& request, std::int64_t rewind_tokens, bool rebuilt) {
    Session session(demo_model().new_cache(rewind_tokens));
    session.begin(request.prompt);
    const std::uint64_t before = encoded(demo_model(), session);
    const Told first = run(session, request);
    const Kept kept = session.rewind(request.prompt.size());
    EXPECT_EQ(kept.reused == 0, rebuilt) << kept.reason;
    EXPECT_EQ(!kept.reason.empty(),
              session.cache().length() != static_cast<std::int64_t>(request.prompt.size()) || kept.lost > 0);
    EXPECT_EQ(encoded(demo_model(), session), before);
    const Told second = run(session, request);
    EXPECT_EQ(second.ids, first.ids);
    EXPECT_EQ(second.inputs, first.inputs);
    EXPECT_EQ(second.canvases, first.canvases);
    EXPECT_EQ(alone(request).told.ids, first.ids) << "and as the one-call path has it";
}

TEST(SessionTurns, RewindingRestoresBelowTheWindow) {
    restores(blocks_of(ids_of(question("Sort: 5 3 9 1.")), 128), 0, false);
}
TEST(SessionTurns, RewindingRestoresAcrossTheWindow) { restores(blocks_of(filler(100), 256), 64, false); }
TEST(SessionTurns, RewindingRestoresThroughARebuiltRing) { restores(blocks_of(filler(150), 600), 0, true); }
TEST(SessionTurns, ALongRingNeedsNoRebuilding) { restores(blocks_of(filler(150), 600), 512, false); }
TEST(SessionTurns, RewindingRestoresAfterRerolls) {
    engine::Request r = demo_request();
    r.stop_ids = {alone(r).told.ids.at(0)};  // every attempt is empty
    restores(r, 0, false);
}

// The protocol operation by operation, with nothing of Reply: what a turn is.
TEST(SessionTurns, OperationByOperationEqualsTheOneCallPath) {
    engine::LoadedModel& demo = demo_model();
    engine::Request request = blocks_of(ids_of(question("Count from 1 to 60.")), 300);
    request.exact = true;
    request.diffusion.temperature = 1;
    request.diffusion.seed = 5;
    Session session(demo.new_cache());
    session.begin(request.prompt);
    diffusion::Options options = request.diffusion;
    options.guards = diffusion::Guards::none();
    const auto noise = diffusion::make_noise(options.noise, options.seed, demo.config.text.vocab_size);
    const auto logits = demo.backend->make_logits(128, demo.config.text.vocab_size).value();
    Ids reply;
    for (int block = 0; reply.size() < 300; ++block) {
        ASSERT_TRUE(session.encode_pending(*demo.model).ok());
        const std::uint64_t before = session.cache().fingerprint();
        const auto denoise = [&](int attempt) {
            auto denoiser = diffusion::Denoiser::start(
                                options, {.length = 128, .vocabulary = demo.config.text.vocab_size}, *noise,
                                {block, attempt})
                                .value();
            while (!denoiser.done()) {
                model::Canvas canvas{.cache = &session.cache(),
                                     .ids = denoiser.canvas(),
                                     .temperature = denoiser.temperature(),
                                     .logits = logits.get(),
                                     .self_condition = denoiser.step() > 0};
                EXPECT_TRUE(demo.model->denoise(std::span(&canvas, 1)).ok());
                EXPECT_TRUE(denoiser.advance(*logits).ok());
            }
            return Ids(denoiser.committed().begin(), denoiser.committed().end());
        };
        session.propose(denoise(7));
        session.discard();  // a canvas that is thrown away leaves nothing behind
        EXPECT_EQ(session.cache().fingerprint(), before);
        session.propose(denoise(0));
        EXPECT_EQ(session.cache().fingerprint(), before) << "a canvas is never in the cache";
        reply.insert(reply.end(), session.proposed().begin(), session.proposed().end());
        session.commit(128);
    }
    session.end();
    reply.resize(300);
    EXPECT_EQ(reply, alone(request).told.ids);
    EXPECT_EQ(session.cache().length(), static_cast<std::int64_t>(request.prompt.size()) + 256);
}

}  // namespace
}  // namespace dgemma::testing
