// Which members the settings of a chat send: without a browser or a server.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { changesOf, withControls, withoutControls } from '../../app/turnstream/web/static/parameters.js'

const controls = [
  { type: 'number', value: '0.5', dataset: { param: 'temperature' } },
  { type: 'number', value: '', dataset: { param: 'seed' } },
  { type: 'select-one', value: 'low', dataset: { param: 'output_config.effort' } },
]

test('a control that is not empty sets its value, and other members stay', () => {
  const values = { stop_sequences: ['x'], output_config: { format: {} }, seed: 3 }
  assert.deepEqual(withControls(values, controls), {
    stop_sequences: ['x'],
    output_config: { format: {}, effort: 'low' },
    seed: 3,
    temperature: 0.5,
  })
  assert.deepEqual(values.output_config, { format: {} })
})

test('what a control shows is not in the rest', () => {
  const values = { temperature: 1, seed: 3, output_config: { effort: 'high' }, stop_sequences: ['x'] }
  assert.deepEqual(withoutControls(values, controls), { stop_sequences: ['x'] })
  assert.deepEqual(withoutControls({ output_config: { effort: 'high', format: {} } }, controls), {
    output_config: { format: {} },
  })
  assert.deepEqual(withoutControls({}, controls), {})
})

test('a change has the members that differ, and null for those that go', () => {
  const before = { model: 'a', params: { seed: 1, top_k: 2 }, limits: { max_rounds: 1 }, tools: ['x'] }
  assert.deepEqual(changesOf(before, before), {})
  assert.deepEqual(changesOf(before, { params: { seed: 1, top_p: 1 }, limits: { max_rounds: 1 }, tools: [] }), {
    model: null,
    params: { top_k: null, top_p: 1 },
    tools: [],
  })
  assert.deepEqual(changesOf({}, { params: { seed: 1 } }), { params: { seed: 1 } })
  assert.deepEqual(changesOf(before, { ...before, params: undefined }), { params: null })
})
