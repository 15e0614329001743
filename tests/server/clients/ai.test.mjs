// Vercel's `ai` with the three providers that speak to such a server.
import assert from 'node:assert/strict';
import {test} from 'node:test';
import {createAnthropic} from '@ai-sdk/anthropic';
import {createOpenAI} from '@ai-sdk/openai';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
import {generateText, jsonSchema, stepCountIs, streamText, tool} from 'ai';
import * as s from './support.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({baseURL: s.url + '/v1', apiKey: s.apiKey});
const providers = {
  'openai, chat': {model: openai.chat('demo'), thinking: null},
  'openai, responses': {model: openai.responses('demo'), thinking: null},
  'openai-compatible': {
    model: createOpenAICompatible({name: 'dgemma', baseURL: s.url + '/v1', apiKey: s.apiKey, includeUsage: true})('demo'),
    thinking: {dgemma: {reasoningEffort: 'low'}},
  },
  'anthropic': {
    model: createAnthropic({baseURL: s.url + '/v1', apiKey: s.apiKey})('demo'),
    thinking: {anthropic: {thinking: {type: 'enabled', budgetTokens: 1024}}},
  },
};
const weather = tool({description: s.weatherText, inputSchema: jsonSchema(s.weatherSchema),
                      execute: async ({city}) => `sunny in ${city}`});
const options = {maxRetries: 0, maxOutputTokens: 400};

for (const [name, {model, thinking}] of Object.entries(providers)) {
  test(`${name}: text and usage`, async () => {
    const reply = await generateText({...options, model, prompt: s.question});
    assert.equal(reply.text, s.answer);
    assert.equal(reply.finishReason, 'stop');
    assert.ok(reply.usage.inputTokens + (reply.usage.cachedInputTokens ?? 0) > 5 && reply.usage.outputTokens > 3);
  });

  test(`${name}: stream`, async () => {
    const reply = streamText({...options, model, prompt: s.question, onError: ({error}) => { throw error; }});
    let text = '', deltas = 0;
    for await (const part of reply.fullStream) {
      assert.notEqual(part.type, 'error', JSON.stringify(part));
      if (part.type === 'text-delta') { text += part.text; ++deltas; }
    }
    assert.equal(text, s.answer);
    assert.ok(deltas > 3);
    assert.equal(await reply.finishReason, 'stop');
    assert.ok((await reply.usage).outputTokens > 3);
  });

  test(`${name}: tools, in two steps`, async () => {
    const reply = await generateText({...options, model, prompt: s.weatherQuestion, tools: {get_weather: weather}, stopWhen: stepCountIs(2)});
    assert.equal(reply.steps.length, 2);
    assert.deepEqual(reply.steps[0].toolCalls[0].input, {city: 'Suva'});
    assert.equal(reply.steps[0].finishReason, 'tool-calls');
    assert.ok(reply.text.length > 0);
  });

  test(`${name}: tools, streamed and required`, async () => {
    const reply = streamText({...options, model, prompt: s.question, tools: {get_weather: weather}, toolChoice: 'required'});
    const calls = [];
    for await (const part of reply.fullStream) {
      assert.notEqual(part.type, 'error', JSON.stringify(part));
      if (part.type === 'tool-call') calls.push(part);
    }
    assert.equal(calls[0].toolName, 'get_weather');
    assert.equal(typeof calls[0].input.city, 'string');
  });

  test(`${name}: thinking`, {skip: thinking ? false : 'this provider knows no way to ask a model of another name for it'}, async () => {
    const reply = await generateText({...options, model, prompt: s.hard, providerOptions: thinking});
    assert.match(reply.reasoningText, /^ones 0\+1=1/);
    assert.equal(reply.text, s.sum);
    const stream = streamText({...options, model, prompt: s.hard, providerOptions: thinking});
    assert.equal(await stream.text, s.sum);
    assert.match(await stream.reasoningText, /^ones/);
  });

  test(`${name}: stop`, {skip: name === 'openai, responses' ? 'that API has no stop' : false}, async () => {
    const reply = await generateText({...options, model, prompt: s.question, stopSequences: [' Paris']});
    assert.equal(reply.text, 'The capital of France is');
    const cut = await generateText({...options, model, prompt: s.counting, maxOutputTokens: 5});
    assert.equal(cut.finishReason, 'length');
  });

  test(`${name}: errors and abort`, async () => {
    await assert.rejects(generateText({...options, model, prompt: 'word '.repeat(5000)}), (error) => {
      assert.equal(error.statusCode, 400);
      return true;
    });
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 100);
    const stream = streamText({...options, maxOutputTokens: 2000, model, prompt: 'Count from 1 to 300.', temperature: 2, abortSignal: controller.signal, onError: () => {}});
    try { for await (const part of stream.fullStream) void part; } catch { /* as the library likes to tell it */ }
    await s.idle();
  });
}
