import assert from 'node:assert/strict'
import { test } from 'node:test'

import { expanded } from '../../app/turnstream/web/static/offers.js'

// Examples of RFC 6570, for variables that are texts.
const VALUES = { var: 'value', hello: 'Hello World!', path: '/foo/bar', x: '1024', y: '768', none: '' }
const CASES = [
  ['notes://{var}', 'notes://value'],
  ['{hello}', 'Hello%20World%21'],
  ['{+path}/here', '/foo/bar/here'],
  ['{#x,hello}', '#1024,Hello%20World!'],
  ['map?{x,y}', 'map?1024,768'],
  ['{.x,y}', '.1024.768'],
  ['{/var,x}/here', '/value/1024/here'],
  ['{;x,y}', ';x=1024;y=768'],
  ['{?x,y,none}', '?x=1024&y=768'],
  ['?fixed=yes{&x}', '?fixed=yes&x=1024'],
  ['{var:3}', 'val'],
  ['{var*}', 'value'],
  ['{none}x', 'x'],
]

for (const [template, address] of CASES)
  test(`the template ${template} becomes ${address}`, () => assert.equal(expanded(template, VALUES), address))
