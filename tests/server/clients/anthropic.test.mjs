// The official `@anthropic-ai/sdk` client.
import assert from 'node:assert/strict';
import {test} from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import * as s from './support.mjs';

const client = new Anthropic({baseURL: s.url, apiKey: s.apiKey, maxRetries: 0});
const user = (content) => [{role: 'user', content}];
const tools = [{name: 'get_weather', description: s.weatherText, input_schema: s.weatherSchema}];
const base = {model: 'demo', max_tokens: 200, seed: 0};
const slow = {messages: user('Tell a story about a frog named Vera.'),
              diffusion: {steps: 2000, entropy_bound: 0.00001, confidence_threshold: 0.0000001}};

test('messages', async () => {
  const reply = await client.messages.create({...base, messages: user(s.question)});
  assert.deepEqual(reply.content.map((block) => block.text), [s.answer]);
  assert.equal(reply.stop_reason, 'end_turn');
  assert.ok(reply.usage.input_tokens + reply.usage.cache_read_input_tokens > 5);
  assert.ok(reply.usage.output_tokens > 3);
});

test('a system message, in blocks', async () => {
  const reply = await client.messages.create(
      {...base, system: [{type: 'text', text: 'Answer in upper case.', cache_control: {type: 'ephemeral'}}],
       messages: user('What is the capital of Syria?')});
  assert.equal(reply.content[0].text, 'THE CAPITAL OF SYRIA IS DAMASCUS.');
});

test('messages, streamed', async () => {
  const stream = client.messages.stream({...base, messages: user(s.question)});
  let text = '', deltas = 0;
  stream.on('text', (piece) => { text += piece; ++deltas; });
  const message = await stream.finalMessage();
  assert.equal(text, s.answer);
  assert.ok(deltas > 3);
  assert.equal(message.content[0].text, s.answer);
  assert.equal(message.stop_reason, 'end_turn');
});

test('drafts are passed over', async () => {
  const message = await client.messages.stream({...base, messages: user(s.question), diffusion: {drafts: true}}).finalMessage();
  assert.equal(message.content[0].text, s.answer);
});

test('tools: a call, its result, the answer', async () => {
  for (const streamed of [false, true]) {
    const messages = user(s.weatherQuestion);
    const ask = (fields) => streamed ? client.messages.stream({...base, tools, ...fields}).finalMessage()
                                     : client.messages.create({...base, tools, ...fields});
    const first = await ask({messages});
    assert.equal(first.stop_reason, 'tool_use');
    const call = first.content.find((block) => block.type === 'tool_use');
    assert.deepEqual(call.input, {city: 'Suva'});
    messages.push({role: 'assistant', content: first.content});
    messages.push({role: 'user', content: [{type: 'tool_result', tool_use_id: call.id, content: 'sunny, 16 degrees'}]});
    const second = await ask({messages});
    assert.equal(second.stop_reason, 'end_turn');
    assert.ok(second.content[0].text.length > 0);
  }
});

test('tools: any, tool, none', async () => {
  for (const tool_choice of [{type: 'any'}, {type: 'tool', name: 'get_weather', disable_parallel_tool_use: true}]) {
    const reply = await client.messages.create({...base, messages: user(s.question), tools, tool_choice});
    assert.deepEqual(reply.content.map((block) => [block.type, block.name]), [['tool_use', 'get_weather']]);
  }
  const none = await client.messages.create({...base, messages: user(s.question), tools, tool_choice: {type: 'none'}});
  assert.equal(none.content[0].text, s.answer);
});

test('thinking', async () => {
  for (const streamed of [false, true]) {
    const fields = {...base, max_tokens: 2000, messages: user(s.hard), thinking: {type: 'enabled', budget_tokens: 1024}};
    const reply = streamed ? await client.messages.stream(fields).finalMessage() : await client.messages.create(fields);
    assert.deepEqual(reply.content.map((block) => block.type), ['thinking', 'text']);
    assert.match(reply.content[0].thinking, /^ones 0\+1=1/);
    assert.ok(reply.content[0].signature.length > 0);
    assert.equal(reply.content[1].text, s.sum);
  }
});

test('stop sequences and the token limit', async () => {
  const reply = await client.messages.create({...base, messages: user(s.question), stop_sequences: ['nowhere', ' Paris']});
  assert.equal(reply.content[0].text, 'The capital of France is');
  assert.deepEqual([reply.stop_reason, reply.stop_sequence], ['stop_sequence', ' Paris']);
  const cut = await client.messages.create({...base, messages: user(s.counting), max_tokens: 5});
  assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ['max_tokens', 5]);
});

test('count_tokens', async () => {
  const {input_tokens} = await client.messages.countTokens({model: 'demo', messages: user(s.question)});
  const reply = await client.messages.create({...base, messages: user(s.question)});
  assert.equal(input_tokens, reply.usage.input_tokens + reply.usage.cache_read_input_tokens);
});

test('errors', async () => {
  await assert.rejects(client.messages.create({...base, messages: []}), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, 'invalid_request_error');
    assert.match(error.error.error.message, /messages/);
    return true;
  });
  await assert.rejects(client.messages.create({...base, model: 'claude', messages: user('x')}), Anthropic.NotFoundError);
  await assert.rejects(new Anthropic({baseURL: s.url, apiKey: 'wrong', maxRetries: 0}).messages.create(
      {...base, messages: user('x')}), Anthropic.AuthenticationError);
});

test('abort ends the work', async () => {
  const stream = client.messages.stream({...base, ...slow});
  setTimeout(() => stream.abort(), 100);
  await assert.rejects(stream.finalMessage());
  await s.idle();
});

test('models', async () => {
  const page = await client.models.list();
  assert.deepEqual(page.data.map((model) => [model.id, model.type]), [['demo', 'model']]);
});
