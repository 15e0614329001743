// The official `openai` client.
import assert from 'node:assert/strict';
import {test} from 'node:test';
import OpenAI from 'openai';
import * as s from './support.mjs';

const client = new OpenAI({baseURL: s.url + '/v1', apiKey: s.apiKey, maxRetries: 0});
const user = (content) => [{role: 'user', content}];
const tools = [{type: 'function', function: {name: 'get_weather', description: s.weatherText, parameters: s.weatherSchema}}];
const base = {model: 'demo', seed: 0};

test('chat', async () => {
  const reply = await client.chat.completions.create({...base, messages: user(s.question)});
  assert.equal(reply.choices[0].message.content, s.answer);
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  assert.ok(reply.usage.completion_tokens > 3);
  assert.equal(reply.diffusion.seed, 0);
});

test('chat, streamed, with usage', async () => {
  const stream = await client.chat.completions.create(
      {...base, messages: user(s.question), stream: true, stream_options: {include_usage: true}});
  let text = '', deltas = 0, usage, finish;
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    if (choice?.delta.content) { text += choice.delta.content; ++deltas; }
    finish = choice?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, s.answer);
  assert.ok(deltas > 3, 'one delta for each word or so');
  assert.equal(finish, 'stop');
  assert.ok(usage.prompt_tokens > 5);
});

test('the stream helper puts the same message together', async () => {
  const stream = client.chat.completions.stream({...base, messages: user(s.weatherQuestion), tools});
  const message = await stream.finalMessage();
  assert.equal(message.tool_calls[0].function.name, 'get_weather');
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), {city: 'Suva'});
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, 'tool_calls');
});

test('drafts are passed over', async () => {
  const stream = await client.chat.completions.create(
      {...base, messages: user(s.question), stream: true, diffusion: {drafts: true}});
  let text = '', drafts = 0;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? '';
    drafts += chunk.diffusion?.draft ? 1 : 0;
  }
  assert.equal(text, s.answer);
  assert.ok(drafts > 0);
});

test('tools: a call, its result, the answer', async () => {
  const messages = user(s.weatherQuestion);
  const first = await client.chat.completions.create({...base, messages, tools});
  assert.equal(first.choices[0].finish_reason, 'tool_calls');
  const [call] = first.choices[0].message.tool_calls;
  assert.equal(call.type, 'function');
  assert.deepEqual(JSON.parse(call.function.arguments), {city: 'Suva'});
  messages.push(first.choices[0].message);
  messages.push({role: 'tool', tool_call_id: call.id, content: 'sunny, 16 degrees'});
  const second = await client.chat.completions.create({...base, messages, tools});
  assert.equal(second.choices[0].finish_reason, 'stop');
  assert.ok(second.choices[0].message.content.length > 0);
});

test('tools: required, named, none', async () => {
  for (const tool_choice of ['required', {type: 'function', function: {name: 'get_weather'}}]) {
    const reply = await client.chat.completions.create({...base, messages: user(s.question), tools, tool_choice});
    assert.equal(reply.choices[0].message.tool_calls[0].function.name, 'get_weather');
    assert.equal(reply.choices[0].message.content, null);
  }
  const none = await client.chat.completions.create(
      {...base, messages: user(s.question), tools, tool_choice: 'none'});
  assert.equal(none.choices[0].message.content, s.answer);
});

test('a delta of a call has its id, name and index', async () => {
  const stream = await client.chat.completions.create(
      {...base, messages: user(s.weatherQuestion), tools, tool_choice: 'required', stream: true});
  const deltas = [];
  for await (const chunk of stream) deltas.push(...(chunk.choices[0]?.delta.tool_calls ?? []));
  assert.ok(deltas.length > 0);
  for (const delta of deltas) {
    assert.match(delta.id, /^call_\w+$/);
    assert.equal(delta.function.name, 'get_weather');
    assert.equal(delta.index, 0);
  }
});

test('thinking', async () => {
  for (const fields of [{reasoning_effort: 'low'}, {enable_thinking: true}]) {
    const reply = await client.chat.completions.create({...base, ...fields, messages: user(s.hard)});
    assert.equal(reply.choices[0].message.content, s.sum);
    assert.match(reply.choices[0].message.reasoning_content, /^ones 0\+1=1/);
    assert.ok(reply.usage.completion_tokens_details.reasoning_tokens > 5);
  }
  const stream = await client.chat.completions.create(
      {...base, enable_thinking: true, messages: user(s.hard), stream: true});
  let thought = '', text = '';
  for await (const chunk of stream) {
    thought += chunk.choices[0].delta.reasoning_content ?? '';
    text += chunk.choices[0].delta.content ?? '';
  }
  assert.match(thought, /^ones/);
  assert.equal(text, s.sum);
});

test('stop strings end a reply and are no part of it', async () => {
  for (const stop of [' Paris', ['nowhere', 'capital of Fr']]) {
    const reply = await client.chat.completions.create({...base, messages: user(s.question), stop});
    assert.equal(reply.choices[0].message.content, s.answer.slice(0, s.answer.indexOf([stop].flat().at(-1))));
    assert.equal(reply.choices[0].finish_reason, 'stop');
  }
  const cut = await client.chat.completions.create({...base, messages: user(s.counting), max_completion_tokens: 5});
  assert.equal(cut.choices[0].finish_reason, 'length');
  assert.equal(cut.usage.completion_tokens, 5);
});

test('errors say which field', async () => {
  const status = async (code, param, fields) => {
    await assert.rejects(client.chat.completions.create({...base, messages: user('x'), ...fields}), (error) => {
      assert.ok(error instanceof OpenAI.APIError, error);
      assert.deepEqual([error.status, error.param], [code, param]);
      return true;
    });
  };
  await status(400, 'n', {n: 2});
  await status(400, 'messages', {messages: []});
  await status(400, 'response_format', {response_format: {type: 'json_object'}});
  await status(404, 'model', {model: 'gpt-x'});
  await assert.rejects(client.chat.completions.create({...base, messages: user('word '.repeat(5000))}), (error) => {
    assert.equal(error.code, 'context_length_exceeded');
    assert.match(error.message, /\d/);
    return true;
  });
  await assert.rejects(
      new OpenAI({baseURL: s.url + '/v1', apiKey: 'wrong', maxRetries: 0}).models.list(), OpenAI.AuthenticationError);
});

test('abort ends the work', async () => {
  const stream = await client.chat.completions.create(
      {...base, messages: user('Tell a story about a frog named Vera.'), stream: true,
       diffusion: {steps: 2000, entropy_bound: 0.00001, confidence_threshold: 0.0000001}});
  setTimeout(() => stream.controller.abort(), 100);
  try { for await (const chunk of stream) void chunk; } catch (error) { assert.match(error.name + error.message, /abort/i); }
  await s.idle();
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 100);
  await assert.rejects(client.chat.completions.create(
      {...base, messages: user('Tell a story about a frog named Vera.'),
       diffusion: {steps: 2000, entropy_bound: 0.00001, confidence_threshold: 0.0000001}},
      {signal: controller.signal}));
  await s.idle();
});

test('responses', async () => {
  const reply = await client.responses.create({model: 'demo', input: s.question, seed: 0});
  assert.equal(reply.output_text, s.answer);
  assert.equal(reply.status, 'completed');
  const cut = await client.responses.create({model: 'demo', input: s.counting, seed: 0, max_output_tokens: 5});
  assert.equal(cut.incomplete_details.reason, 'max_output_tokens');
});

test('responses, streamed', async () => {
  const stream = await client.responses.create({model: 'demo', input: s.question, stream: true, seed: 0});
  let text = '', last, number = 0;
  for await (const event of stream) {
    assert.equal(event.sequence_number, number++);
    if (event.type === 'response.output_text.delta') text += event.delta;
    last = event;
  }
  assert.equal(text, s.answer);
  assert.equal(last.type, 'response.completed');
  assert.equal(last.response.output[0].content[0].text, s.answer);
  const helper = client.responses.stream({model: 'demo', input: s.hard, seed: 0, reasoning: {effort: 'low', summary: 'auto'}});
  const final = await helper.finalResponse();
  assert.equal(final.output_text, s.sum);
  assert.match(final.output[0].summary[0].text, /^ones/);
});

test('responses: a tool call and its result, with the thought sent back', async () => {
  const functions = [{type: 'function', name: 'get_weather', description: s.weatherText, parameters: s.weatherSchema, strict: false}];
  const input = [{role: 'user', content: s.weatherQuestion}];
  const first = await client.responses.create(
      {model: 'demo', input, tools: functions, seed: 0, include: ['reasoning.encrypted_content']});
  const call = first.output.find((item) => item.type === 'function_call');
  assert.deepEqual(JSON.parse(call.arguments), {city: 'Suva'});
  input.push(...first.output, {type: 'function_call_output', call_id: call.call_id, output: 'sunny, 16 degrees'});
  const second = await client.responses.create({model: 'demo', input, tools: functions, seed: 0});
  assert.equal(second.status, 'completed');
  assert.ok(second.output_text.length > 0);
});

test('responses: goes on from a response by its id', async () => {
  const first = await client.responses.create({model: 'demo', input: 'My name is Will.', seed: 0});
  const second = await client.responses.create({model: 'demo', input: 'What is my name?', previous_response_id: first.id, seed: 0});
  assert.equal(second.output_text, 'Your name is Will.');
  const kept = await client.responses.create({model: 'demo', input: 'My name is Will.', seed: 0, store: false});
  await assert.rejects(client.responses.create({model: 'demo', input: 'x', previous_response_id: kept.id}), OpenAI.BadRequestError);
});

test('responses: kept ones are there again, with their input, until they are deleted', async () => {
  const asked = {model: 'demo', input: 'My name is Will.', seed: 0};
  for (const stream of [false, true]) {
    const made = stream ? await client.responses.stream(asked).finalResponse() : await client.responses.create(asked);
    const again = await client.responses.retrieve(made.id);
    assert.equal(again.output_text, made.output_text);
    assert.deepEqual(again.usage, made.usage);
    assert.deepEqual(again.output, JSON.parse(JSON.stringify(made.output, (key, value) => key === 'parsed' ? undefined : value)));
    const items = [];
    for await (const item of client.responses.inputItems.list(made.id)) items.push(item);
    assert.equal(items.length, 1);
    assert.deepEqual(items[0].content, [{type: 'input_text', text: asked.input}]);
    const next = await client.responses.create({model: 'demo', input: 'What is my name?', previous_response_id: made.id, seed: 0});
    const input = [];
    for await (const item of client.responses.inputItems.list(next.id, {limit: 1, order: 'asc'})) input.push(item);
    assert.deepEqual(input.map((item) => item.role), ['user', 'assistant', 'user']);
    await client.responses.delete(made.id);
    await assert.rejects(client.responses.retrieve(made.id), OpenAI.NotFoundError);
    await assert.rejects(client.responses.delete(made.id), OpenAI.NotFoundError);
    await assert.rejects(client.responses.create({...asked, previous_response_id: made.id}), OpenAI.BadRequestError);
  }
  const secret = await client.responses.create({...asked, store: false});
  await assert.rejects(client.responses.retrieve(secret.id), OpenAI.NotFoundError);
  await assert.rejects(client.responses.inputItems.list(secret.id), OpenAI.NotFoundError);
});

test('responses: tokens of a prompt, counted', async () => {
  const asked = {model: 'demo', input: 'My name is Will.'};
  const counted = await client.responses.inputTokens.count(asked);
  assert.equal(counted.object, 'response.input_tokens');
  assert.equal(counted.input_tokens, (await client.responses.create({...asked, seed: 0})).usage.input_tokens);
});

test('completions and models', async () => {
  const reply = await client.completions.create({...base, prompt: 'The capital of', max_tokens: 8});
  assert.equal(reply.object, 'text_completion');
  assert.equal(typeof reply.choices[0].text, 'string');
  const stream = await client.completions.create({...base, prompt: 'The capital of', max_tokens: 8, stream: true});
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0]?.text ?? '';
  assert.equal(text, reply.choices[0].text);
  assert.deepEqual((await client.models.list()).data.map((model) => model.id), ['demo']);
  assert.equal((await client.models.retrieve('demo')).id, 'demo');
  await assert.rejects(client.models.retrieve('other'), OpenAI.NotFoundError);
});
