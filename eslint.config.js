import js from '@eslint/js'
import globals from 'globals'

export default [
  { ignores: ['app/turnstream/web/static/vendor/'] },
  js.configs.recommended,
  {
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      eqeqeq: ['error', 'always'],
      'no-sequences': 'error',
      'no-unused-vars': ['error', { varsIgnorePattern: '^_', argsIgnorePattern: '^_' }],
      'no-var': 'error',
      'object-shorthand': 'error',
      'prefer-const': 'error',
      'prefer-template': 'error',
    },
  },
  {
    files: ['app/turnstream/web/static/*.js', 'app/turnstream/web/packages/**'],
    languageOptions: { globals: globals.browser },
  },
  { files: ['tests/**'], languageOptions: { globals: { ...globals.node, ...globals['shared-node-browser'] } } },
]
