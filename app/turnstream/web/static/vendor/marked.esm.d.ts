// The part of marked that markdown.js uses.
export const Lexer: any
export const Marked: any
export const Parser: any
