// The cost of a text that becomes blocks: a model that means harm writes short texts that take long. A text whose cost grows
// with the square of its length would not end before the time limit of these tests.

import assert from 'node:assert/strict'
import { test } from 'node:test'

globalThis.document = /** @type {any} */ ({ documentElement: { dataset: {} }, querySelector: () => null })
const { blocksOf, cellsOf, MAX_CELLS } = await import('../../app/turnstream/web/static/markdown.js')

const table = (columns, rows, cell = '|b') =>
  [`${'|a'.repeat(columns)}|`, `${'|-'.repeat(columns)}|`, ...Array(rows).fill(cell)].join('\n')
const types = (text) => blocksOf(text, {}).map(({ type }) => type)
const repeated = (text) => text.repeat(Math.ceil(300_000 / text.length))

test('a table with few cells more than it has characters for is a table', () => {
  assert.deepEqual(types(table(3, 4, '|one|two|three|')), ['table'])
  assert.deepEqual(types(table(3, 4, '|one|')), ['table'])
  assert.deepEqual(types('| Name | Size |\n|---|---|\n| a |\n| b | 2 |'), ['table'])
})

test('a table that would be filled up with cells is shown as it was written', () => {
  const [block] = blocksOf(table(2_000, 400), {})
  assert.equal(block.type, 'code')
  assert.equal(block.text, table(2_000, 400))
})

test('the tables of one text have room for so many cells, also in lists and quotes', () => {
  const row = `${'|c'.repeat(10)}|`
  for (const mark of ['', '> ', '- ']) {
    const one = table(10, 100, row)
      .split('\n')
      .map((line, place) => (place || mark !== '- ' ? mark.replace('-', ' ') : mark) + line)
    const blocks = blocksOf(Array(100).fill(one.join('\n')).join('\n\nwords\n\n'), {})
    const cells = cellsOf(blocks)
    assert.ok(cells <= MAX_CELLS && cells > MAX_CELLS - 1_100, `${mark}: ${cells}`)
  }
})

test('what was taken by earlier blocks of a text is missing', () => {
  assert.equal(cellsOf(blocksOf(table(10, 9, `${'|c'.repeat(10)}|`), {}, 100)), 100)
  assert.equal(cellsOf(blocksOf(table(10, 9, `${'|c'.repeat(10)}|`), {}, 99)), 0)
})

test('a footnote ends at a blank line or the next note, and indented lines behind it belong to it', () => {
  const blocks = blocksOf('A[^1] and[^b].\n[^1]: one\nmore\n[^b]: two\n\n    three\n\n\nend [^1](a) `[^1]`', {})
  assert.deepEqual(
    blocks.filter(({ type }) => type === 'note').map(({ id, raw }) => [id, raw]),
    [
      ['1', '[^1]: one\nmore\n'],
      ['b', '[^b]: two\n\n    three\n'],
    ],
  )
  const marks = (block) => block.tokens?.filter(({ type }) => type === 'noteMark').map(({ id }) => id)
  assert.deepEqual([blocks[0], blocks.at(-1)].map(marks), [['1', 'b'], []])
})

const COSTLY = [
  '$$a\n',
  '$$a\n\n',
  '\\[a\n',
  '\\[a\n\n',
  '*a ',
  '_a*b',
  '[a](',
  '![',
  '`a ``b ',
  '<a ',
  '- a\n',
  '-\n',
  '> a\n',
  '# a\n',
  '[^1] ',
  '[^1]: a\n',
  'a\n[^1]:\n',
  '[^1]:\n\n    a\n',
]

test('no text takes time that grows with the square of its length', { timeout: 50_000 }, () => {
  for (const text of COSTLY) {
    blocksOf(repeated(text), {})
    blocksOf(Array(50).fill(text.repeat(1_000).slice(0, 5_900)).join('\n\n'), {})
  }
  blocksOf(Array(5_000).fill(table(100, 10)).join('\n\n').slice(0, 300_000), {})
})

test('formulas are found where they have an end', () => {
  const found = (text) =>
    blocksOf(text, {})
      .flatMap((block) => [block, ...(block.tokens ?? [])])
      .filter(({ type }) => /Formula/.test(type))
  const tex = (text) => found(text).map(({ type, text }) => `${type[0]} ${text}`)
  assert.deepEqual(tex('a\n$$\nx\n$$\nb'), ['b x'])
  assert.deepEqual(tex('\\[x\ny\\]\n\nb'), ['b x\ny'])
  assert.deepEqual(tex('$$x$$'), ['b x'])
  assert.deepEqual(tex('a $$x$$ b \\(y\\) \\[z\\] $w$'), ['i x', 'i y', 'i z', 'i w'])
  assert.deepEqual(tex('$5 and $6'), [])
  assert.deepEqual(tex('$$x\n\ny$$'), [])
  assert.deepEqual(tex('$$a\nb\nc'), [])
})
