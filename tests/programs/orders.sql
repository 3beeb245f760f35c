-- Orders in memory: filled, changed, queried. Same answers every time; the last line is the integrity check's.
PRAGMA temp_store = memory;
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER, note TEXT);

WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO customer SELECT i, printf('customer %06d', i * 7919 % 20000), 'city ' || (i * 31 % 97) FROM n;

WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 130000)
INSERT INTO orders
SELECT i, 1 + i * 48271 % 20000, i * 16807 % 9973, printf('order %d for %s, packed by %s', i, 'item ' || (i % 1013), hex(i * 2654435761))
FROM n;
CREATE INDEX orders_of ON orders (customer, amount);
CREATE INDEX orders_note ON orders (note);

SELECT city, count(*), sum(amount), max(note) FROM orders JOIN customer ON customer.id = orders.customer GROUP BY city ORDER BY city;
UPDATE orders SET note = note || ', changed', amount = amount + 1 WHERE id % 7 = 3;
DELETE FROM orders WHERE amount % 11 = 5;
SELECT customer.name, o.id, o.note FROM customer JOIN orders o ON o.customer = customer.id WHERE customer.id % 400 = 1 ORDER BY o.id;
SELECT count(*), sum(length(note)), sum(id * amount % 1000003) FROM orders;
SELECT note, count(*) FROM orders WHERE note LIKE 'order 12_4%' GROUP BY substr(note, 1, 9) ORDER BY 1 LIMIT 20;
CREATE TABLE copy AS SELECT * FROM orders ORDER BY note;
DROP TABLE orders;
VACUUM;
SELECT amount % 100, count(*), sum(rowid % 977) FROM copy GROUP BY 1 ORDER BY 1;
PRAGMA integrity_check;
