// Shows code to people: colours it in one pass, lays out JSON, and makes hidden characters visible.

const C =
  'break case catch class const continue default do else enum export extends false final finally for function if import in interface new null private protected public return static struct super switch this throw true try type typeof var void while'
const WORDS = {
  js: `${C} async await delete from let of undefined yield as satisfies readonly`,
  python:
    'and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield self',
  shell: 'case do done elif else esac exit export fi for function if in local return set then while cd echo sudo',
  sql: 'add all alter and as asc between by case check commit constraint create cross database default delete desc distinct drop else end exists foreign from full function group having if in index inner insert into is join key left like limit not null on or order outer primary references returning rollback select set table then transaction union unique update using values view when where with',
  c: `${C} auto bool char double float int long namespace operator short signed sizeof template unsigned using virtual nullptr include define`,
  go: `${C} chan defer fallthrough func go goto map nil package range select string int error`,
  rust: `${C} as async await crate dyn fn impl let loop match mod move mut pub ref self Self trait unsafe use where i32 u8 u64 usize str String Some None Ok Err`,
  data: 'true false null yes no',
}
// For each family of languages its keywords, its form of comments, and the names that a block of code may use.
const FAMILIES = [
  ['js', '//', 'js javascript jsx mjs ts tsx typescript'],
  ['c', '//', 'java kotlin swift c cpp c++ csharp cs php'],
  ['go', '//', 'go'],
  ['rust', '//', 'rust rs'],
  ['python', '#', 'python py ruby rb'],
  ['shell', '#', 'sh bash shell zsh dockerfile makefile'],
  ['sql', '--', 'sql'],
  ['data', '#', 'yaml yml toml ini'],
  ['data', '//', 'json jsonc scss'],
  ['data', '/*', 'css'],
  ['data', '<!--', 'html xml svg'],
]
const COMMENTS = {
  '//': '\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)',
  '/*': '\\/\\*[^]*?(?:\\*\\/|$)',
  '#': '#[^\\n]*',
  '--': '--[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)',
  '<!--': '<!--[^]*?(?:-->|$)|<\\/?[\\w-]+|\\/?>',
}
const STRINGS = '"""[^]*?(?:"""|$)|"(?:\\\\.|[^"\\\\\\n])*"?|\'(?:\\\\.|[^\'\\\\\\n])*\'?|`(?:\\\\.|[^`\\\\])*`?'
const NUMBERS = '\\b(?:0x[\\da-fA-F]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b'

const MAX_COLOURED = 60_000 // characters; longer code is shown without colours

/** Returns the code as nodes: text, and spans with the classes `comment`, `string`, `number`, `word`, `name`. */
export function highlighted(code, language) {
  const nodes = document.createDocumentFragment()
  const rules = code.length <= MAX_COLOURED ? rulesOf(language?.toLowerCase()) : null
  let end = 0
  for (const match of rules ? code.matchAll(rules.pattern) : []) {
    const kind = kindOf(match, rules?.words)
    if (!kind) continue
    nodes.append(unmasked(code.slice(end, match.index)), span(kind, match[0]))
    end = match.index + match[0].length
  }
  nodes.append(unmasked(code.slice(end)))
  return nodes
}

function rulesOf(language) {
  const family = FAMILIES.find(([, , names]) => names.split(' ').includes(language))
  if (!family) return null
  const [words, comment] = family
  const pattern = new RegExp(`(${COMMENTS[comment]})|(${STRINGS})|(${NUMBERS})|([A-Za-z_$][\\w$]*)(?=(\\s*\\()?)`, 'g')
  const known = WORDS[words].split(' ')
  return { pattern, words: new Set(words === 'sql' ? [...known, ...known.map((word) => word.toUpperCase())] : known) }
}

function kindOf([, comment, string, number, name, called], words) {
  if (comment) return 'comment'
  if (string) return 'string'
  if (number) return 'number'
  if (words.has(name)) return 'word'
  return name && called ? 'name' : null
}

function span(kind, text) {
  const element = document.createElement('span')
  element.className = `code-${kind}`
  element.append(unmasked(text))
  return element
}

const MASKS = /([\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff])/

/**
 * Returns the text, in which invisible characters, and characters that turn the direction of text, are made visible.
 */
export function unmasked(text) {
  if (!MASKS.test(text)) return text
  const nodes = document.createDocumentFragment()
  for (const piece of text.split(MASKS)) nodes.append(MASKS.test(piece) ? mask(piece) : piece)
  return nodes
}

function mask(character) {
  const element = document.createElement('span')
  element.className = 'mask'
  element.dataset.code = `U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}`
  element.textContent = character
  return element
}

/**
 * Lays out JSON from its text, not from its values: a number keeps the digits that were written, and incomplete JSON is
 * laid out up to its end.
 */
export function prettyJson(text) {
  let depth = 0
  let laidOut = ''
  for (const [token] of text.matchAll(/"(?:\\.|[^"\\])*"?|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    if ('}]'.includes(token)) laidOut += newline(--depth)
    laidOut += token === ':' ? ': ' : token
    if ('{['.includes(token)) laidOut += newline(++depth)
    if (token === ',') laidOut += newline(depth)
  }
  return laidOut.replace(/([{[])\s+([}\]])/g, '$1$2')
}

const newline = (depth) => `\n${'  '.repeat(Math.max(0, depth))}`
