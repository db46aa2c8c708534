-- test/nothing -- reply with a word.
--
-- REPLY  'done'
return 'done'
